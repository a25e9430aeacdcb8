//! Tokens of a quorum with `fencing` rise in the order in which its grants return, however slow the network is.

use tenure_sim::tokens_of_a_quorum;

#[test]
fn tokens_rise_in_the_order_of_grants() {
    let (mut grants, mut went_back) = (0, Vec::new());
    for seed in 0..3_000 {
        let tokens = tokens_of_a_quorum(seed);
        grants += tokens.len();
        if let Some(pair) = tokens.windows(2).find(|pair| pair[1] <= pair[0]) {
            went_back.push(format!("seed {seed}: {} after {}", pair[1], pair[0]));
        }
    }
    assert!(went_back.is_empty(), "{} seeds, such as {:?}", went_back.len(), &went_back[..went_back.len().min(3)]);
    assert!(grants > 15_000, "only {grants} grants: they prove nothing");
}

#[test]
fn one_seed_is_one_history() {
    for seed in 0..20 {
        assert_eq!(tokens_of_a_quorum(seed), tokens_of_a_quorum(seed), "seed {seed}");
    }
}
