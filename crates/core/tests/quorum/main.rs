//! A majority decides: with nodes that are down, silent, deaf, forgetful, dark, split, or ahead of the others.

mod flaky;

use std::time::Duration;

use flaky::{Cut, Flaky};
use tenure_core::backend::{Fencing, Level};
use tenure_core::memory::Memory;
use tenure_core::quorum::{Quorum, Settings};
use tenure_core::{Backend as _, Client, ErrorKind, Event, Guard, Kind, LockName, Phase, Standing, Token, Wait};
use tenure_testkit::{claim, eventually, eventually_async, in_time, unless_stalled};

/// Nothing expires by itself while a test runs.
const LONG: Duration = Duration::from_secs(600);

struct Five(Vec<Flaky>);

impl Five {
    fn new() -> Self {
        Five((0..5).map(|_| Flaky::new()).collect())
    }

    fn client(&self) -> Client {
        self.client_with(false)
    }

    fn client_with(&self, fencing: bool) -> Client {
        let mut settings = Settings::default();
        settings.fencing = fencing;
        Client::new(Quorum::new(self.0.iter().map(Flaky::node).collect(), settings).unwrap()).unwrap()
    }

    fn cut(&self, nodes: impl IntoIterator<Item = usize>, how: Cut) {
        nodes.into_iter().for_each(|node| self.0[node].cut(how));
    }

    /// Somebody has the name at this one node, and not through the quorum.
    async fn occupied(&self, node: usize) -> (Client, Guard) {
        let client = Client::new(self.0[node].store.backend()).unwrap();
        let held = client.mutex("x").unwrap().ttl(LONG).unwrap().try_lock().await.unwrap().expect("it is free there");
        (client, held)
    }

    async fn holders(&self, node: usize) -> usize {
        Client::new(self.0[node].store.backend()).unwrap().view("x").await.unwrap().holders.len()
    }

    async fn are_empty(&self) {
        let residue = || self.0.iter().map(|node| node.store.residue()).sum::<usize>();
        eventually("nothing is left at any node", || residue() == 0).await;
    }
}

async fn lock(client: &Client) -> Guard {
    in_time("the lock is free", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap()
}

async fn try_lock(client: &Client) -> tenure_core::Result<Option<Guard>> {
    client.mutex("x").unwrap().ttl(LONG).unwrap().try_lock().await
}

#[test]
fn only_an_odd_number_of_different_servers_is_a_quorum() {
    let of = |stores: &[&Memory]| {
        Quorum::new(stores.iter().map(|store| store.node()).collect(), Settings::default())
            .map(drop)
            .map_err(|error| error.kind())
    };
    let [a, b, c, d] = [(); 4].map(|()| Memory::new());
    assert_eq!(of(&[&a, &b, &c]), Ok(()));
    for refused in [&[][..], &[&a], &[&a, &b], &[&a, &b, &c, &d], &[&a, &b, &a]] {
        assert_eq!(of(refused), Err(ErrorKind::BadOption));
    }
    let mut settings = Settings::default();
    settings.node_limit = Duration::from_secs(60);
    assert!(Quorum::new([&a, &b, &c].map(Memory::node).to_vec(), settings).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_what_it_cannot_do() {
    let five = Five::new();
    let client = five.client();
    assert_eq!(client.fair_mutex("x").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.semaphore("x", 3).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.cell("x").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.abilities().fencing, Fencing::None);
    assert_eq!(five.client_with(true).abilities().fencing, Fencing::DataOrClock);
    assert_eq!(client.abilities().kinds, [Kind::Mutex, Kind::RwLock, Kind::Election]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_may_fail_in_any_way() {
    for how in [Cut::Down, Cut::Silent, Cut::Deaf] {
        let five = Five::new();
        let (one, other) = (five.client_with(true), five.client_with(true));
        five.cut([1, 3], how);
        let held = lock(&one).await;
        assert!(try_lock(&other).await.unwrap().is_none(), "{how:?}");
        assert_eq!(other.view("x").await.unwrap().holders.len(), 1, "{how:?}");
        held.release().await.unwrap();
        let held = lock(&other).await;
        five.cut([1, 3], Cut::No);
        held.release().await.unwrap();
        five.are_empty().await;
    }
}

/// A node that missed a release hears it again in the background; a client that is closed waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_closed_leaves_nothing_at_a_node_that_was_away() {
    let five = Five::new();
    let client = five.client();
    let held = lock(&client).await;
    five.cut([3], Cut::Down);
    held.release().await.unwrap();
    five.cut([3], Cut::No);
    client.close().await.unwrap();
    assert_eq!(five.holders(3).await, 0);
}

/// A hold of a short ttl that is dropped is ended by nodes that take longer than that over it: nobody else would remove the name there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_hold_is_ended_at_slow_nodes_too() {
    let five = Five::new();
    let mut settings = Settings::default();
    settings.node_limit = Settings::LONGEST_LIMIT;
    let client = Client::new(Quorum::new(five.0.iter().map(Flaky::node).collect(), settings).unwrap()).unwrap();
    let ttl = Duration::from_millis(100);
    let held = client.mutex("x").unwrap().ttl(ttl).unwrap().keep(false).lock().await.unwrap();
    five.cut(0..5, Cut::Slow);
    drop(held);
    tokio::time::sleep(ttl * 3).await; // as long as the nodes are slow
    five.cut(0..5, Cut::No);
    client.close().await.unwrap();
    drop(client);
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_kept_while_two_of_five_fail_in_any_way() {
    let is_kept = async |how| {
        let five = Five::new();
        let client = five.client();
        let ttl = Duration::from_secs(6);
        let held = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
        five.cut([0, 4], how);
        let first = held.valid_until();
        eventually("it is renewed", || held.valid_until() > first + ttl).await;
        five.cut([0, 4], Cut::No);
        held.release().await.unwrap();
        five.are_empty().await;
    };
    tokio::join!(is_kept(Cut::Down), is_kept(Cut::Silent), is_kept(Cut::Deaf));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_of_five_may_not() {
    for how in [Cut::Down, Cut::Silent, Cut::Deaf] {
        let five = Five::new();
        let client = five.client();
        five.cut([0, 2, 4], how);
        let error = try_lock(&client).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(error.to_string().contains("2 of 5 nodes answered, and 3 must"), "{error}");
        let reasons = ["refused, as", "no answer within"].map(|reason| error.to_string().matches(reason).count());
        assert_eq!(reasons.iter().sum::<usize>(), 3, "it says who did not answer: {error}");
        five.cut([0, 2, 4], Cut::No);
        five.are_empty().await; // those that had granted it, and those of which nothing was known
        lock(&client).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_of_answers_a_hold_is_lost_by_the_clock() {
    unless_stalled("there is jeopardy before the loss", Duration::from_millis(500), async || {
        let five = Five::new();
        let client = five.client();
        let held = client.mutex("x").unwrap().ttl(Duration::from_secs(6)).unwrap().lock().await.unwrap();
        let mut events = held.events();
        five.cut([0, 1, 2], Cut::Silent);
        in_time("it is lost", held.lost()).await;
        assert!(tenure_core::Instant::now() >= held.valid_until(), "not before its time: nobody said no");
        let told = events.next().await;
        five.cut([0, 1, 2], Cut::No);
        drop(held);
        five.are_empty().await;
        match told {
            Some(Event::Jeopardy { .. }) => Some(()),
            Some(Event::Lost(_)) => None,
            told => panic!("{told:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_is_taken_is_in_nobodys_way_and_filled_later() {
    let five = Five::new();
    let client = five.client();
    let ((_a, first), (_b, second)) = (five.occupied(0).await, five.occupied(1).await);
    let held = lock(&client).await;
    first.release().await.unwrap();
    second.release().await.unwrap();
    for node in 0..5 {
        eventually_async("every node holds it", async || five.holders(node).await == 1).await;
    }
    held.release().await.unwrap();
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_taken_is_busy_and_nothing_is_left_elsewhere() {
    let five = Five::new();
    let client = five.client();
    let mut taken = Vec::new();
    for node in 0..3 {
        taken.push(five.occupied(node).await);
    }
    assert!(try_lock(&client).await.unwrap().is_none());
    assert_eq!((five.holders(3).await, five.holders(4).await), (0, 0));
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    assert!(mutex.try_lock_for(Duration::from_millis(200)).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { mutex.lock().await });
    drop(taken.pop());
    in_time("three of five are enough", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(taken);
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_nodes_that_come_and_go() {
    let five = Five::new();
    let (one, other) = (five.client(), five.client());
    let held = lock(&one).await;
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
    five.cut([0], Cut::Down);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually_async("it stands in line", async || one.view("x").await.unwrap().line.len() == 1).await;
    five.0[1].store.forget(); // and with it who waits
    five.cut([0], Cut::No);
    eventually_async("it is in line again, or inside, at both", async || {
        let node = |node: usize| Client::new(five.0[node].store.backend()).unwrap();
        let (a, b) = (node(0).view("x").await.unwrap(), node(1).view("x").await.unwrap());
        a.line.len() == 1 && b.holders.len() + b.line.len() == 1
    })
    .await;
    assert!(!waiting.is_finished(), "a node that forgot is one vote");
    held.release().await.unwrap();
    in_time("the waiter is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_forgets_is_a_vote_lost_and_three_are_the_hold() {
    let five = Five::new();
    let client = five.client();
    let held = lock(&client).await;
    let mut events = held.events();
    for node in [2, 4] {
        five.0[node].store.forget();
        assert!(matches!(in_time("it is in doubt", events.next()).await, Some(Event::Jeopardy { .. })));
        assert_eq!(in_time("the others hold it", events.next()).await, Some(Event::Safe));
        assert_eq!(five.holders(node).await, 0, "a renewal makes nothing anew");
    }
    five.0[0].store.forget();
    in_time("it is lost, long before its time", held.lost()).await;
    drop(held);
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dark_node_is_not_even_asked() {
    let five = Five::new();
    let client = five.client();
    five.0[..2].iter().for_each(|node| node.store.be_dark(true));
    let held = lock(&client).await;
    assert_eq!((five.holders(0).await, five.holders(1).await, five.holders(2).await), (0, 0, 1));
    held.release().await.unwrap();
    assert!(
        client
            .examine()
            .await
            .unwrap()
            .iter()
            .any(|found| found.level == Level::Warning && found.says.starts_with("3 of 5"))
    );
    five.0[2].store.be_dark(true);
    let error = try_lock(&client).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("may have forgotten"), "{error}");
    five.are_empty().await;
}

/// What the dark rule is for: a node that restarted empty would give a second majority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_restart_lets_nobody_in_while_it_is_dark() {
    let five = Five::new();
    let (one, other) = (five.client(), five.client());
    five.cut([3, 4], Cut::Down);
    let held = lock(&one).await; // 0, 1, 2
    five.0[2].store.be_dark(true);
    five.0[2].store.forget();
    five.cut([3, 4], Cut::No);
    assert!(try_lock(&other).await.unwrap().is_none(), "two votes and a dark node");
    five.0[2].store.be_dark(false);
    assert!(try_lock(&other).await.unwrap().is_some(), "without the rule there are two holders");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_reaches_those_that_were_away_when_they_come_back() {
    for how in [Cut::Down, Cut::Silent, Cut::Deaf] {
        let five = Five::new();
        let client = five.client();
        let held = lock(&client).await;
        five.cut([1, 2], how);
        held.release().await.expect("a majority confirmed it");
        assert_eq!(five.holders(0).await, 0);
        five.cut([1, 2], Cut::No);
        five.are_empty().await;
    }
}

/// A hold that a majority of nodes has broken is no more there to be released; what a minority broke is.
#[tokio::test]
async fn a_release_says_whether_a_majority_had_the_claim() {
    for (broken, says) in [(2, Ok(())), (3, Err(ErrorKind::Lost))] {
        let five = Five::new();
        let quorum = Quorum::new(five.0.iter().map(Flaky::node).collect(), Settings::default()).unwrap();
        let claim = claim(Kind::Mutex, 0);
        quorum.acquire(&claim, Wait::No).await.unwrap().expect("it is free");
        for node in &five.0[..broken] {
            assert_eq!(node.store.backend().break_holds(&claim.name, None).await.unwrap(), 1);
        }
        assert_eq!(quorum.release(&claim).await.map_err(|error| error.kind()), says, "{broken} of 5");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_go_back_without_fencing_and_never_with_it() {
    for fencing in [false, true] {
        let five = Five::new();
        let client = five.client_with(fencing);
        // The first node is an hour ahead.
        let ahead = Token::new(tenure_core::Clock::Boot.wall_micros() + 3_600_000_000);
        five.0[0].node().raise(&LockName::new("x").unwrap(), ahead).await.unwrap();
        five.cut([3, 4], Cut::Down);
        let held = lock(&client).await;
        let first = held.token();
        assert!(first > ahead);
        held.release().await.unwrap();
        five.cut([3, 4], Cut::No);
        five.cut([0, 1], Cut::Down); // and now a majority without it
        let held = lock(&client).await;
        assert_eq!(held.token() > first, fencing);
        held.release().await.unwrap();
    }
}

/// Whoever waits gets its votes one by one. The first may be over before the last is there, and somebody else have been in with them:
/// their tokens do not count any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_that_is_over_does_not_make_the_token_older() {
    let five = Five::new();
    let mut settings = Settings::default();
    (settings.fencing, settings.node_limit) = (true, Duration::from_secs(5));
    let client = Client::new(Quorum::new(five.0.iter().map(Flaky::node).collect(), settings).unwrap()).unwrap();
    let mut theirs = Vec::new();
    for node in 0..5 {
        theirs.push(Some(five.occupied(node).await.1));
    }
    // Two such windows are over long before its round is given up, which is after as long as a node may take.
    let mutex = client.mutex("x").unwrap().ttl(Duration::from_millis(500)).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    for node in &five.0 {
        let client = Client::new(node.store.backend()).unwrap();
        eventually_async("it waits there", async || client.view("x").await.unwrap().line.len() == 1).await;
    }
    for node in [0, 1] {
        theirs[node].take().unwrap().release().await.unwrap();
        eventually_async("its vote is over", async || five.holders(node).await == 0).await;
    }
    theirs[2].take().unwrap().release().await.unwrap();
    // Somebody else has three of five votes, as many nodes know its token, and it lets go.
    let mut other = Vec::new();
    for node in [0, 1] {
        other.push(five.occupied(node).await.1);
    }
    let token = other.iter().map(Guard::token).max().unwrap();
    for node in [0, 1, 3] {
        five.0[node].node().raise(&LockName::new("x").unwrap(), token).await.unwrap();
    }
    for held in other.into_iter().chain(theirs.into_iter().flatten()) {
        held.release().await.unwrap();
    }
    let held = in_time("it gets in", waiting).await.unwrap();
    assert!(held.token() > token, "{} is not above {token}", held.token());
}

/// One node's clock is ahead. A waiter has a vote from the third node since before the first grant, and gets the other two by
/// hand-over: its token must be above the grant's all the same, whether or not a node takes that over in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_has_a_vote_already_gets_a_higher_token_than_a_grant_before() {
    for first in [Cut::No, Cut::Stubborn] {
        let nodes: Vec<Flaky> = (0..3).map(|_| Flaky::new()).collect();
        let others: Vec<Flaky> = nodes.iter().map(Flaky::seen_from_elsewhere).collect();
        let client = |nodes: &[Flaky]| {
            let mut settings = Settings::default();
            (settings.fencing, settings.node_limit) = (true, Settings::LONGEST_LIMIT);
            Client::new(Quorum::new(nodes.iter().map(Flaky::node).collect(), settings).unwrap()).unwrap()
        };
        let ahead = Token::new(tenure_core::Clock::Boot.wall_micros() + 3_600_000_000);
        nodes[1].node().raise(&LockName::new("x").unwrap(), ahead).await.unwrap();
        let (one, other) = (client(&nodes), client(&others));
        others[..2].iter().for_each(|node| node.cut(Cut::Slow));
        let waiting = tokio::spawn(async move { lock(&other).await });
        let seen = async |node: usize| {
            let client = Client::new(nodes[node].store.backend()).unwrap();
            let view = client.view("x").await.unwrap();
            (view.holders.len(), view.line.len())
        };
        eventually_async("it has the third node's vote", async || seen(2).await == (1, 0)).await;
        nodes[0].cut(first);
        let granted = try_lock(&one).await.map(|held| held.expect("two nodes are free"));
        others[..2].iter().for_each(|node| node.cut(Cut::No));
        let mut last = Token::new(0);
        match granted {
            Ok(held) => {
                eventually_async("it waits at the others", async || (seen(0).await, seen(1).await) == ((1, 1), (1, 1)))
                    .await;
                last = held.token();
                held.release().await.unwrap();
            }
            Err(error) => {
                assert_eq!(first, Cut::Stubborn, "{error}");
                assert!(error.to_string().contains("1 of 3 nodes took over the token, and 2 must"), "{error}");
            }
        }
        let held = in_time("its turn", waiting).await.unwrap();
        assert!(held.token() > last, "{} is not above {last}", held.token());
        held.release().await.unwrap();
    }
}

/// A token is one node's. That this node does not answer, or has forgotten, must not make a hold look as if it were over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_a_majority_has_is_never_said_to_be_over() {
    for fencing in [false, true] {
        let five = Five::new();
        let client = five.client_with(fencing);
        // Nodes that disagree about the time, so that each token is some other node's.
        for (node, ahead) in [(0, 3), (1, 5), (2, 1), (3, 4), (4, 2)] {
            let ahead = Token::new(tenure_core::Clock::Boot.wall_micros() + ahead * 3_600_000_000);
            five.0[node].node().raise(&LockName::new("x").unwrap(), ahead).await.unwrap();
        }
        let held = lock(&client).await;
        let sequencer = held.sequencer();
        eventually_async("all nodes have it", async || {
            let mut votes = 0;
            for node in 0..5 {
                votes += five.holders(node).await;
            }
            votes == 5
        })
        .await;
        assert_eq!(client.check(&sequencer).await.unwrap(), Standing::Current);
        let mut said = Vec::new();
        for (one, other) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 1), (1, 2), (2, 3), (3, 4), (4, 0)] {
            five.cut([one, other], Cut::Down);
            said.push(client.check(&sequencer).await.unwrap());
            five.cut([one, other], Cut::No);
        }
        assert!(said.iter().all(|said| matches!(said, Standing::Current | Standing::Unknown)), "{said:?}");
        assert!(said.contains(&Standing::Current) && said.contains(&Standing::Unknown), "{said:?}");
        for node in [3, 0] {
            five.0[node].store.forget();
            let said = client.check(&sequencer).await.unwrap();
            assert!(matches!(said, Standing::Current | Standing::Unknown), "{said:?}");
        }
        five.cut([0, 1, 2], Cut::Down);
        assert_eq!(client.check(&sequencer).await.unwrap_err().kind(), ErrorKind::Unavailable);
        five.cut([0, 1, 2], Cut::No);
        let _ = held.release().await;
        assert!(matches!(client.check(&sequencer).await.unwrap(), Standing::Released | Standing::Unknown));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_a_majority_cannot_take_over_is_no_grant() {
    let five = Five::new();
    let client = five.client_with(true);
    let held = lock(&client).await;
    let ahead = Token::new(held.token().get() + 3_600_000_000);
    held.release().await.unwrap();
    five.0[4].node().raise(&LockName::new("x").unwrap(), ahead).await.unwrap();
    five.cut([0, 1], Cut::Down);
    five.cut([2], Cut::Stubborn); // of those that vote one gives the highest, and one other takes it over
    let error = try_lock(&client).await.unwrap_err();
    assert!(error.to_string().contains("2 of 5 nodes took over the token, and 3 must"), "{error}");
    five.are_empty().await;
    five.cut([2], Cut::No);
    lock(&client).await.release().await.unwrap();
    // Where all vote, a majority gave it or a higher one, and nobody has to be told.
    five.cut(0..5, Cut::Stubborn);
    lock(&client).await.release().await.unwrap();
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_nobody_answered_is_an_error_and_no_refusal() {
    let five = Five::new();
    let client = five.client();
    five.cut([0, 1, 2], Cut::Silent);
    let error = client.mutex("x").unwrap().try_lock_for(Duration::from_millis(20)).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("2 of 5"), "{error}");
    five.cut([0, 1, 2], Cut::No);
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_a_minority_broke_is_held() {
    let five = Five::new();
    let client = five.client();
    let held = lock(&client).await;
    for node in 0..2 {
        assert_eq!(Client::new(five.0[node].store.backend()).unwrap().break_holds("x", None).await.unwrap(), 1);
    }
    held.check().unwrap();
    assert_eq!(client.view("x").await.unwrap().holders.len(), 1);
    assert_eq!(held.phase(), Phase::Held);
    Client::new(five.0[2].store.backend()).unwrap().break_holds("x", None).await.unwrap();
    in_time("three of five broke it", held.lost()).await;
    assert!(client.view("x").await.unwrap().holders.is_empty(), "two of five hold nothing");
    drop(held);
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_needs_a_majority_and_shows_whom_nobody_can_rule_out() {
    let five = Five::new();
    let (one, other) = (five.client(), five.client());
    five.cut([3, 4], Cut::Down);
    let held = lock(&one).await;
    five.cut([3, 4], Cut::No);
    five.cut([0, 1], Cut::Down); // two of its three votes are not heard
    assert_eq!(other.view("x").await.unwrap().holders.len(), 1);
    assert_eq!(other.list("", None, 10).await.unwrap().len(), 1);
    five.cut([2], Cut::Down);
    assert!(other.view("x").await.unwrap_err().is_transient());
    five.cut(0..5, Cut::No);
    held.release().await.unwrap();
    five.are_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_leaves_out_what_a_minority_has_and_no_more() {
    let five = Five::new();
    let client = five.client();
    let elsewhere = Client::new(five.0[3].store.backend()).unwrap();
    let mut held = Vec::new();
    for name in ["a", "c", "e"] {
        held.push(elsewhere.mutex(name).unwrap().lock().await.unwrap()); // at one node only
    }
    for name in ["b", "d", "f"] {
        held.push(client.mutex(name).unwrap().lock().await.unwrap());
    }
    assert!(client.view("a").await.unwrap().is_free());
    for limit in 1..4 {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = client.list("", after.as_ref(), limit).await.unwrap();
            after = page.last().map(|view| view.name.clone()).or(after);
            names.extend(page.iter().map(|view| view.name.to_string()));
            if page.len() < limit {
                break;
            }
        }
        assert_eq!(names, ["b", "d", "f"], "in pages of {limit}");
    }
}
