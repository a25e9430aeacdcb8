//! Who holds and who waits, seen from all nodes together; and what is said to holders.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::ballot::Ballot;
use super::{Members, Node};
use crate::backend::{BoxFuture, Finding};
use crate::{Ask, Error, Fingerprint, Holder, LockName, Result, Sequencer, Standing, Token, View, Waiter};

/// Asks every node at once and waits for all, or their limit: a look is not worth more.
async fn of_all<T: Send + 'static>(
    members: &Arc<Members>,
    question: impl Fn(Arc<dyn Node>) -> BoxFuture<'static, Result<T>>,
) -> (Vec<(usize, T)>, Vec<(usize, Error)>) {
    let ballot = Ballot::of(members.nodes.len(), |node| {
        let (question, members) = (question(Arc::clone(&members.nodes[node])), Arc::clone(members));
        let limit = members.limit() * LOOKS_TAKE;
        Box::pin(async move { timeout(limit, question).await.unwrap_or_else(|_| Err(members.no_answer())) })
    });
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    for (node, answer) in ballot.all().await {
        match answer {
            Ok(answer) => answers.push((node, answer)),
            Err(error) => failures.push((node, error)),
        }
    }
    (answers, failures)
}

/// Nobody's window depends on a look: it may take so many times a node's limit.
const LOOKS_TAKE: u32 = 4;

/// The same, if a majority answered.
async fn of_a_majority<T: Send + 'static>(
    members: &Arc<Members>,
    question: impl Fn(Arc<dyn Node>) -> BoxFuture<'static, Result<T>>,
) -> Result<Vec<(usize, T)>> {
    let (answers, failures) = of_all(members, question).await;
    if answers.len() >= members.majority() {
        return Ok(answers);
    }
    Err(members.too_few(answers.len(), "answered", failures))
}

async fn views(members: &Arc<Members>, name: &LockName) -> Result<Vec<(usize, View)>> {
    of_a_majority(members, |node| {
        let name = name.clone();
        Box::pin(async move { node.view(&name).await })
    })
    .await
}

/// All nodes' views as one.
pub(super) async fn view(members: &Arc<Members>, name: &LockName) -> Result<View> {
    let views = views(members, name).await?;
    Ok(merged(members, name, views.into_iter().map(|(_, view)| view).collect()))
}

/// How a sequencer stands. Its token is one that some node gave, and every node has another for the same hold: so that node says
/// which claim is meant, and all of them whether a majority has it. Where that node does not answer, or has forgotten the hold
/// while a majority has it, nobody can tell.
pub(super) async fn check(members: &Arc<Members>, sequencer: &Sequencer) -> Result<Standing> {
    let views: Vec<View> = views(members, &sequencer.name).await?.into_iter().map(|(_, view)| view).collect();
    let (token, unheard) = (sequencer.token, members.nodes.len() - views.len());
    let tokens = |claim: Fingerprint| -> Vec<Token> {
        let votes = views.iter().flat_map(|view| &view.holders).filter(|vote| vote.claim == claim && !vote.closing);
        votes.map(|vote| vote.token).collect()
    };
    let mut view = merged(members, &sequencer.name, views.clone());
    view.holders.retain(|holder| !holder.closing);
    if let Some(place) = view.holders.iter().position(|holder| tokens(holder.claim).contains(&token)) {
        let meant = Holder { token, ..view.holders.swap_remove(place) };
        let votes = tokens(meant.claim).len();
        if votes >= members.majority() {
            return Ok(View { holders: vec![meant], ..view }.standing(sequencer));
        }
        if votes + unheard >= members.majority() {
            return Ok(Standing::Unknown); // those who do not answer decide it
        }
    }
    for holder in &view.holders {
        let votes = tokens(holder.claim);
        if lowest(members, &votes) > Some(token) {
            return Ok(Standing::Superseded { by: holder.token });
        }
        if votes.len() < members.nodes.len() {
            return Ok(Standing::Unknown); // it may be the one that is meant
        }
    }
    let lasts: Vec<Token> = views.iter().filter_map(|view| view.last).collect();
    let last = lowest(members, &lasts).filter(|last| *last > token).or(lasts.contains(&token).then_some(token));
    Ok(View { holders: Vec::new(), last, ..view }.standing(sequencer))
}

/// The lowest token that these votes can have made, however low the others were that are not known any more.
fn lowest(members: &Members, votes: &[Token]) -> Option<Token> {
    let mut votes = votes.to_vec();
    votes.sort_unstable();
    let unknown = members.nodes.len() - votes.len();
    votes.get(members.majority().checked_sub(1 + unknown)?).copied()
}

/// What is known of one claim from all nodes.
#[derive(Default)]
struct Seen {
    tokens: Vec<Token>,
    holder: Option<Holder>,
    waits: usize,
    waiter: Option<Waiter>,
}

/// A claim is a holder if a majority of nodes may hold it, those that were not heard included; it stands in line if a
/// majority may have it in one way or the other. What fewer have is on its way in or out: nobody's hold and nobody's place.
fn merged(members: &Members, name: &LockName, views: Vec<View>) -> View {
    let unheard = members.nodes.len() - views.len();
    let kind = views.iter().find_map(|view| view.kind);
    let mut claims: HashMap<Fingerprint, Seen> = HashMap::new();
    for view in views {
        for holder in view.holders {
            let seen = claims.entry(holder.claim).or_default();
            seen.tokens.push(holder.token);
            let shown = seen.holder.get_or_insert_with(|| holder.clone());
            shown.held_for = shown.held_for.max(holder.held_for);
            shown.expires_in = shown.expires_in.max(holder.expires_in);
            shown.closing |= holder.closing;
            shown.asked = shown.asked.take().or(holder.asked);
        }
        for waiter in view.line {
            let seen = claims.entry(waiter.claim).or_default();
            seen.waits += 1;
            let shown = seen.waiter.get_or_insert_with(|| waiter.clone());
            shown.waiting_for = shown.waiting_for.max(waiter.waiting_for);
        }
    }
    let mut view = View { name: name.clone(), kind: None, holders: Vec::new(), line: Vec::new(), last: None };
    for Seen { tokens, holder, waits, waiter } in claims.into_values() {
        let (held, highest) = (tokens.len(), tokens.iter().copied().max());
        match (holder, waiter) {
            (Some(holder), _) if held + unheard >= members.majority() => {
                let token = super::keep::token(members, tokens).or(highest).unwrap_or(holder.token);
                view.holders.push(Holder { token, ..holder });
            }
            (_, Some(waiter)) if held + waits + unheard >= members.majority() => view.line.push(waiter),
            _ => {}
        }
    }
    view.holders.sort_by_key(|holder| (holder.token, holder.claim));
    view.line.sort_by_key(|waiter| (std::cmp::Reverse(waiter.waiting_for), waiter.claim));
    view.kind = kind.filter(|_| !view.is_free());
    view
}

/// A page of names. What belongs on it is on the page of every node that has it; what turns out to be nobody's is left out,
/// and the page filled with what comes after.
pub(super) async fn list(members: &Arc<Members>, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
    let (mut found, mut after) = (Vec::new(), after.cloned());
    loop {
        let missing = limit - found.len();
        let pages = of_a_majority(members, |node| {
            let (prefix, after) = (prefix.to_owned(), after.clone());
            Box::pin(async move { node.list(&prefix, after.as_ref(), missing).await })
        })
        .await?;
        let (answered, all_short) = (pages.len(), pages.iter().all(|(_, page)| page.len() < missing));
        let mut names: BTreeMap<LockName, Vec<View>> = BTreeMap::new();
        for view in pages.into_iter().flat_map(|(_, page)| page) {
            names.entry(view.name.clone()).or_default().push(view);
        }
        let is_last = all_short && names.len() <= missing;
        for (name, mut views) in names.into_iter().take(missing) {
            views.resize(answered, View::free(name.clone())); // who does not list it has nothing of it
            found.extend(Some(merged(members, &name, views)).filter(|view| !view.is_free()));
            after = Some(name);
        }
        if is_last || found.len() == limit {
            return Ok(found);
        }
    }
}

/// Looks from time to time: nodes change one after the other, and only all of them together mean something.
pub(super) async fn watch(members: &Arc<Members>, name: &LockName, seen: &View) -> Result<View> {
    loop {
        let view = view(members, name).await?;
        if !view.says_the_same_as(seen) {
            return Ok(view);
        }
        let clock = members.clock();
        clock.sleep_until(clock.now() + WATCH_EVERY).await;
    }
}

const WATCH_EVERY: Duration = Duration::from_millis(50);

/// Asks every holder to let go, at every node.
pub(super) async fn ask(members: &Arc<Members>, name: &LockName, ask: &Ask) -> Result<usize> {
    let asked = of_a_majority(members, |node| {
        let (name, ask) = (name.clone(), ask.clone());
        Box::pin(async move { node.ask(&name, &ask).await })
    })
    .await?;
    Ok(a_majority_says(members, asked))
}

/// Ends holds by force. Every node has a token of its own for one hold, any of which may be the one its holder was given:
/// so one of them is enough to name it, and each node is told its own.
pub(super) async fn break_holds(members: &Arc<Members>, name: &LockName, only: Option<Token>) -> Result<usize> {
    let mut tokens: HashMap<usize, Vec<Token>> = HashMap::new();
    if let Some(token) = only {
        let views = views(members, name).await?;
        let holders = || views.iter().flat_map(|(node, view)| view.holders.iter().map(move |holder| (*node, holder)));
        let named: Vec<Fingerprint> =
            holders().filter(|(_, holder)| holder.token == token).map(|(_, holder)| holder.claim).collect();
        for (node, holder) in holders().filter(|(_, holder)| named.contains(&holder.claim)) {
            tokens.entry(node).or_default().push(holder.token);
        }
    }
    let place = |node: &Arc<dyn Node>| members.nodes.iter().position(|other| Arc::ptr_eq(other, node));
    let broken = of_a_majority(members, |node| {
        let (name, tokens) = (name.clone(), place(&node).and_then(|place| tokens.get(&place).cloned()).unwrap_or_default());
        Box::pin(async move {
            if only.is_none() {
                return node.break_holds(&name, None).await;
            }
            let mut broken = 0;
            for token in tokens {
                broken += node.break_holds(&name, Some(token)).await?;
            }
            Ok(broken)
        })
    })
    .await?;
    Ok(a_majority_says(members, broken))
}

/// The highest number that a majority of nodes reaches: what fewer have is nobody's hold.
fn a_majority_says(members: &Members, numbers: Vec<(usize, usize)>) -> usize {
    let mut numbers: Vec<usize> = numbers.into_iter().map(|(_, number)| number).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers.get(members.majority() - 1).copied().unwrap_or_default()
}

/// One round of all nodes.
pub(super) async fn probe(members: &Arc<Members>) -> Result<()> {
    of_a_majority(members, |node| Box::pin(async move { node.probe().await })).await.map(drop)
}

/// What each node found, under its own name.
pub(super) async fn examine(members: &Arc<Members>) -> Vec<Finding> {
    let ballot = Ballot::of(members.nodes.len(), |node| {
        let node = Arc::clone(&members.nodes[node]);
        Box::pin(async move { timeout(Duration::from_secs(10), node.examine()).await })
    });
    let mut all = ballot.all().await;
    all.sort_by_key(|(node, _)| *node);
    let unanswered = |says: String| vec![Finding::bad("answer", says)];
    let mut findings = Vec::new();
    for (node, answer) in all {
        let found = match answer {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => unanswered(error.to_string()),
            Err(_) => unanswered("it does not answer".to_owned()),
        };
        let name = members.nodes[node].describe();
        findings.extend(found.into_iter().map(|finding| Finding { what: format!("{name}: {}", finding.what), ..finding }));
    }
    findings
}

/// Closes every node, when each has confirmed the endings that it was told of, or has had time for it; what one of them cannot do it
/// is asked again next time.
pub(super) async fn close(members: &Arc<Members>) -> Result<()> {
    let _ = timeout(ENDINGS_LIMIT, members.endings.closed()).await;
    let ballot = Ballot::of(members.nodes.len(), |node| {
        let node = Arc::clone(&members.nodes[node]);
        Box::pin(async move { node.close().await })
    });
    let failures: Vec<_> =
        ballot.all().await.into_iter().filter_map(|(node, answer)| answer.err().map(|error| (node, error))).collect();
    let closed = members.nodes.len() - failures.len();
    if closed >= members.majority() { Ok(()) } else { Err(members.too_few(closed, "closed", failures)) }
}

/// How long a client that is closed waits for nodes that have not confirmed an ending: a node that is away may stay away.
const ENDINGS_LIMIT: Duration = Duration::from_secs(2);
