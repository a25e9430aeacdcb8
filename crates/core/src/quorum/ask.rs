//! Asking for a claim: rounds, each of which wins a majority or gives everything back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::ballot::Ballot;
use super::claims::Filling;
use super::{Members, keep};
use crate::{Claim, Error, Grant, Instant, Renewal, Result, Token, Wait};

/// Grants the claim, or waits for it in line at every node.
pub(super) async fn acquire(members: &Arc<Members>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
    let (clock, environment) = (members.clock(), &members.settings.environment);
    let deadline = wait.deadline(clock.now());
    let mut bound = members.limit().min(FIRST_PAUSE);
    for number in 0.. {
        let mut round = Round::begin(members, members.claims.begin(claim, number), wait, deadline);
        if let Some(grant) = round.run().await? {
            return Ok(Some(grant)); // an error leaves the round noted: the caller's release must find it
        }
        let latest = round.give_up().await;
        if wait == Wait::No || clock.now() >= deadline {
            members.claims.forget(latest.id);
            break;
        }
        let nap = environment.between(Duration::ZERO, bound);
        clock.sleep_until(deadline.min(clock.now() + nap)).await;
        bound = (bound * 2).min(members.limit() * LONGEST_PAUSE);
    }
    Ok(None)
}

/// The longest that the first pause between rounds takes: a limit may be generous, and nodes all the same quick.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Pauses between rounds are at most so many times a node's limit.
const LONGEST_PAUSE: u32 = 16;

/// One round: one id, asked for at every node.
struct Round<'a> {
    members: &'a Arc<Members>,
    claim: Arc<Claim>,
    wait: Wait,
    deadline: Instant,
    ballot: Ballot<Result<Option<Grant>>>,
    votes: Vec<Vote>,
    /// When the votes began to come: a majority has to follow soon.
    first: Option<Instant>,
}

enum Vote {
    Open,
    Granted(Grant),
    Refused,
    Failed(Error),
}

impl<'a> Round<'a> {
    fn begin(members: &'a Arc<Members>, claim: Claim, wait: Wait, deadline: Instant) -> Self {
        let many = members.nodes.len();
        let votes = (0..many).map(|_| Vote::Open).collect();
        let (claim, ballot) = (Arc::new(claim), Ballot::new(many));
        let mut round = Round { members, claim, wait, deadline, ballot, votes, first: None };
        (0..many).for_each(|node| round.ask(node, Duration::ZERO));
        round
    }

    /// Asks one node, after a pause where it failed before. Asking twice with one id is one ask.
    fn ask(&mut self, node: usize, pause: Duration) {
        let (members, claim) = (Arc::clone(self.members), Arc::clone(&self.claim));
        let (wait, deadline, clock) = (self.wait, self.deadline, self.members.clock());
        let question = async move {
            if !pause.is_zero() {
                clock.sleep_until(clock.now() + pause).await;
            }
            let node = &members.nodes[node];
            node.vote()?;
            match wait {
                Wait::No => {
                    timeout(members.limit(), node.acquire(&claim, wait)).await.unwrap_or_else(|_| Err(members.no_answer()))
                }
                _ => node.acquire(&claim, wait.left(deadline, clock.now())).await,
            }
        };
        self.ballot.ask(node, Box::pin(question));
    }

    /// The grant, or `None` once a majority is out of reach.
    async fn run(&mut self) -> Result<Option<Grant>> {
        let (clock, limit) = (self.members.clock(), self.members.limit());
        let begun = clock.now();
        let mut decide_by = self.deadline + limit;
        loop {
            let answers = tokio::select! {
                biased;
                answers = self.ballot.answers() => answers,
                () = clock.sleep_until(decide_by) => Vec::new(),
            };
            let time_is_up = answers.is_empty();
            for (node, answer) in answers {
                self.count(node, answer);
            }
            if time_is_up && clock.now() >= self.deadline + limit {
                self.give_up_on_the_silent();
            }
            let failed = self.votes.iter().filter(|vote| matches!(vote, Vote::Failed(_))).count();
            let refused = self.votes.iter().filter(|vote| matches!(vote, Vote::Refused)).count();
            if failed > self.members.spare() {
                return Err(self.failure(self.members.nodes.len() - failed, "answered"));
            }
            let (now, granted) = (clock.now(), self.granted().count());
            if time_is_up || failed + refused > self.members.spare() || granted + failed + refused == self.votes.len() {
                break;
            }
            if granted >= self.members.majority() {
                // The others have as long again: what all agree on from the start needs no mending later.
                let took = now.since(begun).min(now.since(self.first.unwrap_or(now)).max(A_MOMENT));
                decide_by = decide_by.min(now + took.min(limit));
            } else if self.first.is_none() && granted > 0 {
                self.first = Some(now);
                // Who does not wait has each node's own limit; and where the wait ends first, whoever is alive will say so.
                if self.wait != Wait::No && now + limit < self.deadline {
                    decide_by = now + limit;
                }
            }
        }
        if self.granted().count() < self.members.majority() { Ok(None) } else { self.won().await }
    }

    fn count(&mut self, node: usize, answer: Result<Option<Grant>>) {
        // A node that lost its voice while it was asked may have forgotten whom it let in before.
        let answer = answer.and_then(|answer| self.members.nodes[node].vote().map(|()| answer));
        self.votes[node] = match answer {
            Ok(Some(grant)) => Vote::Granted(grant),
            Ok(None) => Vote::Refused,
            Err(error) => {
                if self.wait != Wait::No && error.is_transient() {
                    self.ask(node, self.members.limit() * 2); // it may come back while others keep us waiting
                }
                Vote::Failed(error)
            }
        };
    }

    /// The wait is over and more: whoever has not even said no has not answered.
    fn give_up_on_the_silent(&mut self) {
        for vote in self.votes.iter_mut().filter(|vote| matches!(vote, Vote::Open)) {
            *vote = Vote::Failed(self.members.no_answer());
        }
    }

    fn granted(&self) -> impl Iterator<Item = (usize, Grant)> + '_ {
        self.votes.iter().enumerate().filter_map(|(node, vote)| match vote {
            Vote::Granted(grant) => Some((node, *grant)),
            _ => None,
        })
    }

    /// A majority granted it: is there time left, and do enough nodes know its token?
    ///
    /// Votes of a waiter come one by one, and the first may be over before the last is there. Such a node may have let somebody else
    /// in since: its vote is none any more, and its token, which is old, must not make ours lower than theirs.
    async fn won(&mut self) -> Result<Option<Grant>> {
        let clock = self.members.clock();
        let now = clock.now();
        let mut votes: Vec<(usize, Grant)> = self.granted().filter(|(_, grant)| grant.until > now).collect();
        let given: Vec<(usize, Token)> = votes.iter().map(|(node, grant)| (*node, grant.token)).collect();
        let Some(token) = keep::token(self.members, given.iter().map(|(_, token)| *token)) else { return Ok(None) };
        if self.members.settings.fencing {
            // What counts is a majority that knows the token and still has the claim when its grant returns: a node whose vote
            // ended meanwhile may have let somebody in below the token before it heard of it.
            let knowing = raise(self.members, &self.claim, given.clone(), token).await?;
            votes.retain(|(node, _)| knowing.contains(node));
        }
        let until = keep::until(self.members, votes.iter().map(|(_, grant)| grant.until)).expect("a majority granted it");
        let least = self.claim.ttl.min(self.claim.handover_ttl) / 10;
        if until <= clock.now() + least {
            return Ok(None); // it took so long that the caller would have no time to do anything, or even to renew
        }
        self.members.claims.granted(self.claim.id, given.iter().map(|(node, _)| *node));
        self.fill();
        Ok(Some(Grant { token, until }))
    }

    /// Leaves the answers that are still out to the background, so that late nodes vote too.
    fn fill(&mut self) {
        let late: Vec<usize> = self.ballot.waiting_for().collect();
        let Some(runtime) = self.members.runtime().filter(|_| !late.is_empty()) else { return };
        let mut ballot = std::mem::replace(&mut self.ballot, Ballot::new(self.votes.len()));
        let (members, claim) = (Arc::clone(self.members), Arc::clone(&self.claim));
        let runs = Arc::new(tokio::sync::Mutex::new(()));
        let running = Arc::clone(&runs).try_lock_owned().expect("nobody else knows it yet");
        let task = runtime.spawn(async move {
            while !ballot.is_complete() {
                for (node, answer) in ballot.answers().await {
                    if let Ok(Some(_)) = answer {
                        late_vote(&members, &claim, node).await;
                    }
                }
            }
            drop(running);
        });
        self.members.claims.fills(self.claim.id, Filling { task: task.abort_handle(), runs });
    }

    /// Gives back what this round has or may have: wherever the answer was not a plain no.
    async fn give_up(self) -> Claim {
        let unused = Claim { min_hold: Duration::ZERO, ..(*self.claim).clone() };
        drop(self.ballot); // first, so that nothing is asked for any more
        let nodes: Vec<usize> = (0..self.votes.len()).filter(|node| !matches!(self.votes[*node], Vote::Refused)).collect();
        keep::end(self.members, &unused, &nodes, None).await;
        unused
    }

    fn failure(&mut self, did: usize, what: &str) -> Error {
        let votes = std::mem::take(&mut self.votes).into_iter().enumerate();
        let failures = votes.filter_map(|(node, vote)| match vote {
            Vote::Failed(error) => Some((node, error)),
            _ => None,
        });
        self.members.too_few(did, what, failures)
    }
}

/// A node granted it after the majority was complete. As at any grant, one that lost its voice meanwhile has no vote.
async fn late_vote(members: &Members, claim: &Claim, place: usize) {
    let node = &members.nodes[place];
    // A grant made to a waiter is short; the keeper's next renewal may be far away.
    let renewed = timeout(members.limit(), node.renew(std::slice::from_ref(claim))).await;
    if matches!(renewed.as_deref(), Ok([Ok(Renewal::Held { .. })])) && node.vote().is_ok() {
        members.claims.vote(claim.id, place, true);
    }
}

/// The least that timers can do.
const A_MOMENT: Duration = Duration::from_millis(1);

/// Has a majority of the nodes that voted for the claim know its token, and returns those that do. Whoever comes next has one
/// of them in its own majority, and that node lets it in after this claim, so above the token. A node that knows the token
/// and voted for somebody else, who waits elsewhere, has let that one in below it. A node that gave the token or a higher one
/// knows it; where every node voted, that is a majority already.
pub(super) async fn raise(
    members: &Arc<Members>,
    claim: &Claim,
    given: Vec<(usize, Token)>,
    token: Token,
) -> Result<Vec<usize>> {
    let mut knowing: Vec<usize> = given.iter().filter(|(_, given)| *given >= token).map(|(node, _)| *node).collect();
    let mut ballot = Ballot::new(members.nodes.len());
    for place in (0..members.nodes.len()).filter(|node| !knowing.contains(node)) {
        let (node, name, members) = (Arc::clone(&members.nodes[place]), claim.name.clone(), Arc::clone(members));
        let question = async move {
            timeout(members.limit(), node.raise(&name, token)).await.unwrap_or_else(|_| Err(members.no_answer()))
        };
        ballot.ask(place, Box::pin(question));
    }
    let mut failures = Vec::new();
    while knowing.len() < members.majority() {
        if ballot.is_complete() {
            return Err(members.too_few(knowing.len(), "took over the token", failures));
        }
        for (node, answer) in ballot.answers().await {
            match answer {
                Ok(counter) if counter >= token && given.iter().any(|(voter, _)| *voter == node) => knowing.push(node),
                Ok(_) => {}
                Err(error) => failures.push((node, error)),
            }
        }
    }
    // The others hear of it in the background: a node that is told of a token by several outlives what one of them forgets.
    if let Some(runtime) = members.runtime().filter(|_| !ballot.is_complete()) {
        runtime.spawn(ballot.all());
    }
    Ok(knowing)
}
