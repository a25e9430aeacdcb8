//! What happens to a claim that a majority granted: renewal, and the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Members;
use super::ballot::Ballot;
use crate::backend::ended;
use crate::{Ask, Claim, ClaimId, Error, ErrorKind, Instant, Renewal, Result, Token};

/// The moment at which the votes that are still good cease to be a majority: `None` if they are none now.
pub(super) fn until(members: &Members, votes: impl IntoIterator<Item = Instant>) -> Option<Instant> {
    let mut ends: Vec<Instant> = votes.into_iter().collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    ends.get(members.majority() - 1).copied()
}

/// The token that these votes make: the highest of the lowest that are a majority. Whoever knows of an earlier grant is
/// among those, so it is higher than that; and the votes above it need not be told of it. A vote that comes late is mostly a
/// higher one, and changes nothing.
pub(super) fn token(members: &Members, votes: impl IntoIterator<Item = Token>) -> Option<Token> {
    let mut tokens: Vec<Token> = votes.into_iter().collect();
    tokens.sort_unstable();
    tokens.get(members.majority() - 1).copied()
}

/// The votes on one claim's renewal.
#[derive(Default)]
struct Tally {
    held: Vec<Instant>,
    lost: usize,
    failed: Vec<(usize, Error)>,
    asked: Option<Ask>,
}

impl Tally {
    fn count(&mut self, node: usize, answer: Option<Result<Renewal>>) {
        match answer {
            Some(Ok(Renewal::Held { until, asked })) => {
                self.held.push(until);
                self.asked = self.asked.take().or(asked);
            }
            Some(Ok(Renewal::Lost)) => self.lost += 1,
            Some(Err(error)) => self.failed.push((node, error)),
            None => self.failed.push((node, Error::new(ErrorKind::Backend, "it left out an answer"))),
        }
    }

    fn is_decided(&self, members: &Members) -> bool {
        self.held.len() >= members.majority() || self.lost > members.spare()
    }

    fn result(self, members: &Members) -> Result<Renewal> {
        match until(members, self.held.iter().copied()) {
            Some(until) => Ok(Renewal::Held { until, asked: self.asked }),
            None if self.lost > members.spare() => Ok(Renewal::Lost),
            None => Err(members.too_few(self.held.len(), "renewed it", self.failed)),
        }
    }
}

/// Renews a batch at every node at once. Answers as soon as every claim is decided; a node that is late by then goes on in
/// the background, since a vote that is not renewed is lost.
pub(super) async fn renew(members: &Arc<Members>, claims: &[Claim]) -> Vec<Result<Renewal>> {
    let clock = members.clock();
    let claims: Arc<[Claim]> = claims.iter().map(|claim| members.claims.latest(claim)).collect();
    let begun = clock.now();
    let mut ballot = Ballot::of(members.nodes.len(), |node| {
        let (node, claims) = (Arc::clone(&members.nodes[node]), Arc::clone(&claims));
        Box::pin(async move { node.renew(&claims).await })
    });
    let mut tallies: Vec<Tally> = claims.iter().map(|_| Tally::default()).collect();
    let mut decide_by = Instant::NEVER;
    while !ballot.is_complete() {
        let answers = tokio::select! {
            biased;
            answers = ballot.answers() => answers,
            () = clock.sleep_until(decide_by) => break,
        };
        for (node, answers) in answers {
            let mut answers = note(members, &claims, node, answers).into_iter();
            tallies.iter_mut().for_each(|tally| tally.count(node, answers.next()));
        }
        if decide_by == Instant::NEVER && tallies.iter().all(|tally| tally.is_decided(members)) {
            let now = clock.now();
            decide_by = now + now.since(begun).min(members.limit());
        }
    }
    if let Some(runtime) = members.runtime().filter(|_| !ballot.is_complete()) {
        let (members, claims) = (Arc::clone(members), Arc::clone(&claims));
        let patience = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default() / 6;
        runtime.spawn(timeout(patience, async move {
            while !ballot.is_complete() {
                for (node, answers) in ballot.answers().await {
                    note(&members, &claims, node, answers);
                }
            }
        }));
    }
    tallies.into_iter().map(|tally| tally.result(members)).collect()
}

/// Notes which of the claims a node holds.
fn note(members: &Members, claims: &[Claim], node: usize, answers: Vec<Result<Renewal>>) -> Vec<Result<Renewal>> {
    for (claim, answer) in claims.iter().zip(&answers) {
        if let Ok(renewal) = answer {
            members.claims.vote(claim.id, node, *renewal != Renewal::Lost);
        }
    }
    answers
}

/// Ends the claim at every node. Ok once a majority confirmed it: nobody can have it then, and whoever comes next finds
/// enough nodes free. `false` if too few nodes can still have had it for a majority.
pub(super) async fn release(members: &Arc<Members>, claim: &Claim) -> Result<bool> {
    if let Some(filling) = members.claims.stop_filling(claim.id) {
        drop(filling.lock().await); // nothing is asked for any more
    }
    let latest = members.claims.latest(claim);
    let nodes: Vec<usize> = (0..members.nodes.len()).collect();
    let Endings { gone, failures } = end(members, &latest, &nodes, Some(latest.id)).await;
    let confirmed = members.nodes.len() - failures.len();
    if confirmed < members.majority() {
        return Err(members.too_few(confirmed, "confirmed the release", failures));
    }
    Ok(members.nodes.len() - gone >= members.majority())
}

/// What nodes said to the end of a claim.
pub(super) struct Endings {
    /// How many had nothing of it any more.
    gone: usize,
    /// Those that did not confirm it.
    failures: Vec<(usize, Error)>,
}

/// Ends what a claim left at these nodes, and says which did not confirm it: those hear it again in the background.
/// `forget` is forgotten when all is done.
pub(super) async fn end(members: &Arc<Members>, claim: &Claim, nodes: &[usize], forget: Option<ClaimId>) -> Endings {
    let claim = Arc::new(claim.clone());
    let mut ballot = Ballot::new(members.nodes.len());
    for node in nodes {
        let (claim, members, place) = (Arc::clone(&claim), Arc::clone(members), *node);
        let question = async move {
            let answer = timeout(members.limit(), members.nodes[place].release(&claim)).await;
            answer.unwrap_or_else(|_| Err(members.no_answer()))
        };
        ballot.ask(place, Box::pin(question));
    }
    let answers = ballot.all().await;
    let forgetting = forget.map(|id| Arc::new(Forgetting { members: Arc::clone(members), id }));
    let mut failures: Vec<_> =
        answers.into_iter().filter_map(|(node, answer)| answer.err().map(|error| (node, error))).collect();
    let not_confirmed = failures.len();
    failures.retain(|(_, error)| error.kind() != ErrorKind::Lost);
    let gone = not_confirmed - failures.len();
    for (node, _) in &failures {
        if let Some(runtime) = members.runtime() {
            let (ending, goes_on) = (members.endings.subscribe(), forgetting.clone());
            let insisting = insist(Arc::clone(members), *node, Arc::clone(&claim), goes_on);
            runtime.spawn(async move {
                insisting.await;
                drop(ending);
            });
        }
    }
    Endings { gone, failures }
}

/// Forgets a claim when the last ending of it is done.
struct Forgetting {
    members: Arc<Members>,
    id: ClaimId,
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.members.claims.forget(self.id);
    }
}

/// Tells one node that a claim is over until it confirms that, or must have forgotten it by itself.
async fn insist(members: Arc<Members>, node: usize, claim: Arc<Claim>, _forgets: Option<Arc<Forgetting>>) {
    let clock = members.clock();
    let forgotten = clock.now() + claim.ttl + claim.lock_delay + claim.min_hold;
    let mut pause = members.limit();
    while clock.now() < forgotten {
        members.nap(pause).await;
        // Longer than the limit: nobody waits for it, and a node that is only slow should be able to confirm.
        if let Ok(Ok(())) = timeout(members.limit() * 4, members.nodes[node].release(&claim)).await.map(ended) {
            return;
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
