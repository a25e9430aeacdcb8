//! What happens to a claim that a majority granted: renewal, conversion, and the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::Members;
use super::ask::raise;
use super::ballot::Ballot;
use super::claims::Converting;
use crate::backend::ended;
use crate::{Ask, Claim, ClaimId, Error, ErrorKind, Grant, Instant, Mode, Renewal, Result, Token};

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
    let conversions: Vec<u32> = claims.iter().map(|claim| members.claims.conversions(claim.id)).collect();
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
            for (claim, tally) in claims.iter().zip(&mut tallies) {
                let answer = answers.next();
                tally.count(node, if members.claims.counts(claim.id, node) { answer } else { Some(Ok(Renewal::Lost)) });
            }
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
    let still = |claim: &Claim, before: u32| before.is_multiple_of(2) && members.claims.conversions(claim.id) == before;
    let answers = claims.iter().zip(conversions).zip(tallies);
    answers
        .map(|((claim, before), tally)| if still(claim, before) { tally.result(members) } else { Err(converted()) })
        .collect()
}

/// What a renewal says that met a conversion on its way: votes for a reader are none for a writer, and it cannot tell which
/// they were. The conversion has a window of its own.
fn converted() -> Error {
    Error::new(ErrorKind::Unavailable, "its mode was changed while it was renewed")
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
/// enough nodes free.
pub(super) async fn release(members: &Arc<Members>, claim: &Claim) -> Result<()> {
    if let Some(filling) = members.claims.stop_filling(claim.id) {
        drop(filling.lock().await); // nothing is asked for any more
    }
    let latest = members.claims.latest(claim);
    let nodes: Vec<usize> = (0..members.nodes.len()).collect();
    let failures = end(members, &latest, &nodes, Some(latest.id)).await;
    let confirmed = members.nodes.len() - failures.len();
    if confirmed >= members.majority() { Ok(()) } else { Err(members.too_few(confirmed, "confirmed the release", failures)) }
}

/// Ends what a claim left at these nodes, and says which did not confirm it: those hear it again in the background.
/// `forget` is forgotten when all is done.
pub(super) async fn end(
    members: &Arc<Members>,
    claim: &Claim,
    nodes: &[usize],
    forget: Option<ClaimId>,
) -> Vec<(usize, Error)> {
    let claim = Arc::new(claim.clone());
    let mut ballot = Ballot::new(members.nodes.len());
    for node in nodes {
        let (claim, members, place) = (Arc::clone(&claim), Arc::clone(members), *node);
        let question = async move {
            let answer = timeout(members.limit(), members.nodes[place].release(&claim)).await;
            answer.map_or_else(|_| Err(members.no_answer()), ended)
        };
        ballot.ask(place, Box::pin(question));
    }
    let answers = ballot.all().await;
    let forgetting = forget.map(|id| Arc::new(Forgetting { members: Arc::clone(members), id }));
    let failures: Vec<_> =
        answers.into_iter().filter_map(|(node, answer)| answer.err().map(|error| (node, error))).collect();
    for (node, _) in &failures {
        if let Some(runtime) = members.runtime() {
            runtime.spawn(insist(Arc::clone(members), *node, Arc::clone(&claim), forgetting.clone()));
        }
    }
    failures
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

/// Changes the mode at every node at once, if a majority can.
pub(super) async fn convert(members: &Arc<Members>, claim: &Claim, to: Mode, known: Token) -> Result<Option<Grant>> {
    let claim = Arc::new(members.claims.latest(claim));
    if !members.claims.is_convertible(claim.id, to, known) {
        return Ok(None);
    }
    let converting = members.claims.converts(claim.id);
    let mut grants: Vec<(usize, Grant)> = Vec::new();
    let (mut refused, mut failures) = (0, Vec::new());
    for (node, answer) in change(members, &claim, to, converting.turn).await {
        // A node that may have forgotten other readers cannot say that this one is alone.
        match answer.and_then(|answer| members.nodes[node].vote().map(|()| answer)) {
            Ok(Some(grant)) => grants.push((node, grant)),
            Ok(None) => refused += 1,
            Err(error) => failures.push((node, error)),
        }
    }
    let Some(until) = until(members, grants.iter().map(|(_, grant)| grant.until)) else {
        if to == Mode::Exclusive {
            take_back(members, &claim, converting).await;
        }
        let cannot = refused > members.spare() || failures.is_empty();
        return if cannot { Ok(None) } else { Err(members.too_few(grants.len(), &format!("made it {to}"), failures)) };
    };
    let voted = token(members, grants.iter().map(|(_, grant)| grant.token)).expect("a majority changed it");
    if to == Mode::Exclusive && members.settings.fencing {
        let given = grants.iter().map(|(node, grant)| (*node, grant.token)).collect();
        if let Err(error) = raise(members, &claim, given, voted).await {
            take_back(members, &claim, converting).await;
            return Err(error);
        }
    }
    let token = members.claims.converted(claim.id, to, grants.iter().map(|(node, _)| *node), voted);
    Ok(Some(Grant { token, until }))
}

/// Asks every node to change the mode, and waits for all, or their limit.
async fn change(members: &Arc<Members>, claim: &Arc<Claim>, to: Mode, turn: u32) -> Vec<(usize, Result<Option<Grant>>)> {
    let ballot = Ballot::of(members.nodes.len(), |node| {
        let (members, claim) = (Arc::clone(members), Arc::clone(claim));
        Box::pin(async move {
            let answer = timeout(members.limit(), change_at(&members, &claim, node, to, turn)).await;
            answer.unwrap_or_else(|_| Err(members.no_answer()))
        })
    });
    ballot.all().await
}

/// Changes the mode at one node, while it is this turn's to do so.
async fn change_at(members: &Members, claim: &Claim, node: usize, to: Mode, turn: u32) -> Result<Option<Grant>> {
    let learned = |grant: &Grant| members.claims.learned(claim.id, node, grant.token, turn);
    let Some(token) = members.claims.token_at(claim.id, node) else { return Ok(None) };
    let node = &members.nodes[node];
    let changed = node.convert(claim, to, token).await?;
    if changed.is_some() || to == Mode::Exclusive {
        return Ok(changed.filter(learned));
    }
    // It may be the writer there, under a token that was never heard. Asked to make it that once more, the node says which.
    let Some(writer) = node.convert(claim, Mode::Exclusive, token).await?.filter(learned) else { return Ok(None) };
    node.convert(claim, to, writer.token).await
}

/// Makes a reader again of what did not become the writer. A node that does not confirm it, where others are kept out
/// without need, hears it again in the background.
async fn take_back(members: &Arc<Members>, claim: &Arc<Claim>, converting: Converting<'_>) {
    let answers = change(members, claim, Mode::Shared, converting.turn).await;
    let turn = converting.turn + 1;
    drop(converting);
    for (node, _) in answers.into_iter().filter(|(_, answer)| answer.is_err()) {
        if let Some(runtime) = members.runtime() {
            runtime.spawn(insist_on_reading(Arc::clone(members), node, Arc::clone(claim), turn));
        }
    }
}

/// Tells one node that a claim only reads until it confirms that, the claim is over, or its mode is changed again.
async fn insist_on_reading(members: Arc<Members>, node: usize, claim: Arc<Claim>, turn: u32) {
    let mut pause = members.limit();
    loop {
        members.nap(pause).await;
        if members.claims.conversions(claim.id) != turn {
            return;
        }
        if let Ok(Ok(_)) = timeout(members.limit() * 4, change_at(&members, &claim, node, Mode::Shared, turn)).await {
            return;
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
