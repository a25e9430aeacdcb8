//! Every planted bug is caught, and what catches it is the bug: the sound store survives the very same seed.

use tenure_sim::{Mutant, run};

/// How many seeds a bug may hide for. The rarest needs a request that arrives twice, late, and a name free at that moment.
const PATIENCE: u64 = 2_000;

#[test]
fn every_planted_bug_is_caught() {
    let mut hidden = Vec::new();
    for mutant in Mutant::ALL {
        let caught = (0..PATIENCE).map(|seed| run(seed, Some(mutant))).find(|run| !run.violations.is_empty());
        match caught {
            Some(caught) => {
                eprintln!("{:>5} seeds: {mutant:?}: {}", caught.seed + 1, caught.violations[0]);
                let sound = run(caught.seed, None);
                assert!(sound.violations.is_empty(), "the sound store fails too: {:?}", sound.complaint());
            }
            None => hidden.push(mutant),
        }
    }
    assert!(hidden.is_empty(), "not caught within {PATIENCE} seeds: {hidden:?}");
}
