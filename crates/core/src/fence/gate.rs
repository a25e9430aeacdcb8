//! What stands in front of a resource: a sequencer comes in, and is let through or refused.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use super::{Fence, Rule, Verdict, is_alone};
use crate::{Error, ErrorKind, Keys, LockName, Result, Sequencer, Token};

/// Takes [sequencers](Sequencer) in front of a resource, and refuses holders that come too late.
///
/// The resource knows which lock protects it, and says so: a sequencer of another lock is no key to this door, whatever its token.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use std::sync::Arc;
/// use tenure_core::fence::{Gate, MemoryFence};
/// use tenure_core::{ErrorKind, Sequencer};
/// let gate = Gate::new(Arc::new(MemoryFence::new()));
/// let (first, second): (Sequencer, Sequencer) =
///     ("tenure1:mutex:exclusive:17:0:invoices".parse()?, "tenure1:mutex:exclusive:18:0:invoices".parse()?);
/// gate.write("invoices", &first, async { /* the first holder's write */ }).await?;
/// gate.write("invoices", &second, async { /* it was lost, and the next one's came */ }).await?;
/// let late = gate.write("invoices", &first, async { unreachable!("it is not even begun") }).await;
/// assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
/// # Ok(()) }
/// ```
///
/// # Modes
///
/// - **Exclusive**, and a semaphore's holder that took all permits: the token is shown to the fence, which remembers it.
/// - **Shared**: a reader is fenced against later *writers* only. Its token is compared and not remembered, since readers are
///   inside together: the later one must not shut the earlier one out. So a late writer is refused for a later writer's sake, not for
///   a reader's: whoever reads while a lost writer's last write arrives may see it.
/// - **Some permits of a semaphore**: `Unsupported`. Their holders are inside together and all of them write, so no order of their
///   tokens means anything.
#[derive(Clone)]
pub struct Gate {
    fence: Arc<dyn Fence>,
    rule: Rule,
    keys: Option<Keys>,
    /// Who writes now, by name.
    writing: Arc<Mutex<HashMap<LockName, Weak<tokio::sync::Mutex<()>>>>>,
}

impl Gate {
    /// A gate with this fence, which takes unsigned sequencers and any token.
    pub fn new(fence: Arc<dyn Fence>) -> Self {
        Gate { fence, rule: Rule::ANY, keys: None, writing: Arc::default() }
    }

    /// Refuses tokens that are too high to be true.
    pub fn rule(self, rule: Rule) -> Self {
        Gate { rule, ..self }
    }

    /// Refuses sequencers that were not signed with one of these keys, or were changed since.
    pub fn keys(self, keys: Keys) -> Self {
        Gate { keys: Some(keys), ..self }
    }

    /// The fence behind it.
    pub fn fence(&self) -> &Arc<dyn Fence> {
        &self.fence
    }

    /// `Ok` if the sequencer is one of the lock `name` and nobody with a higher token has come before. Else an error: of kind
    /// [`Lost`](ErrorKind::Lost) for whoever comes too late, of [`Mismatch`](ErrorKind::Mismatch) for another lock's sequencer, of
    /// [`BadOption`](ErrorKind::BadOption) for a token that is too high to be true.
    ///
    /// What is done afterwards can be overtaken: see [`write`](Gate::write).
    ///
    /// # Cancel safety
    /// Dropped, the token may have been shown or not. Showing it again is right.
    pub async fn pass(&self, name: impl AsRef<str>, sequencer: &Sequencer) -> Result<()> {
        let name = LockName::new(name)?;
        let token = sequencer.token;
        match self.judge(&name, sequencer).await? {
            Verdict::Accepted => Ok(()),
            Verdict::Stale { highest } => {
                let what = format!("the token {token} comes too late: it is superseded by {highest}");
                Err(self.refusal(ErrorKind::Lost, &name, what).with_hint(
                    "Somebody else has held the lock since and has been here. Nothing of this hold may be written any more: stop, \
                     and take the lock anew",
                ))
            }
            Verdict::Implausible { highest } => {
                Err(self.refusal(ErrorKind::BadOption, &name, implausible(token, highest)).with_hint(
                    "Does the token come from the store that this resource is used with, and are both clocks right?",
                ))
            }
        }
    }

    /// What [`pass`](Gate::pass) goes by: a verdict, where the sequencer is one of this lock and can be fenced at all.
    ///
    /// # Cancel safety
    /// As of [`pass`](Gate::pass).
    pub async fn judge(&self, name: &LockName, sequencer: &Sequencer) -> Result<Verdict> {
        match self.examine(name, sequencer)? {
            true => self.fence.advance(name, sequencer.token, self.rule).await,
            false => self.foresee(name, sequencer).await,
        }
    }

    /// What [`judge`](Gate::judge) would say now. Changes nothing.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn foresee(&self, name: &LockName, sequencer: &Sequencer) -> Result<Verdict> {
        self.examine(name, sequencer)?;
        Ok(Verdict::of(self.fence.highest(name).await?, sequencer.token, self.rule))
    }

    /// Refuses what is no key to this door, whatever its token; else whether its token is one to remember.
    fn examine(&self, name: &LockName, sequencer: &Sequencer) -> Result<bool> {
        if let Some(keys) = &self.keys {
            sequencer.verify(keys).map_err(|error| error.with_name(name))?;
        }
        is_alone(name, sequencer).map_err(|error| error.with_store(self.fence.describe()))
    }

    fn refusal(&self, kind: ErrorKind, name: &LockName, what: String) -> Error {
        Error::new(kind, what).with_name(name).with_store(self.fence.describe())
    }

    /// Passes and writes, with nothing in between: while `write` runs, nobody else writes to the name through this gate and its clones. A
    /// resource that is one process, and is written only so, is never written by a holder that comes too late.
    ///
    /// `write` runs in a task of its own: once begun it goes on to its end, and nobody else writes before that.
    ///
    /// # Cancel safety
    /// Dropped, the token may have been shown or not; `write` has not begun, or goes on without anybody who hears of it.
    pub async fn write<T, W>(&self, name: impl AsRef<str>, sequencer: &Sequencer, write: W) -> Result<T>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let turn = self.enter(name, sequencer).await?;
        let written = tokio::spawn(async move {
            let _turn = turn;
            write.await
        });
        written.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Error::new(ErrorKind::Unavailable, "the runtime ended before the write"),
        })
    }

    /// Waits for the name's turn and passes, as [`pass`](Gate::pass) does: until the [`Turn`] is dropped nobody else writes to the name
    /// through this gate and its clones. For whoever cannot use [`write`](Gate::write): keep the turn for as long as anything that it
    /// has let begin goes on, also if whoever asked for it has gone away.
    ///
    /// Signature, name and mode are checked before: whoever made its sequencer up does not even stand in line.
    ///
    /// # Cancel safety
    /// Dropped, the token may have been shown or not, and the turn is free.
    pub async fn enter(&self, name: impl AsRef<str>, sequencer: &Sequencer) -> Result<Turn> {
        let name = LockName::new(name)?;
        self.examine(&name, sequencer)?;
        let turn = Turn(self.turn(&name).lock_owned().await);
        self.pass(name.as_str(), sequencer).await?;
        Ok(turn)
    }

    fn turn(&self, name: &LockName) -> Arc<tokio::sync::Mutex<()>> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = writing.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        writing.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        writing.insert(name.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// The right to write to a name, alone through this [`Gate`]; see [`Gate::enter`].
#[derive(Debug)]
#[must_use = "the turn is over when this is dropped"]
pub struct Turn(#[expect(dead_code, reason = "it is held, not used")] OwnedMutexGuard<()>);

/// A refusal in words.
fn implausible(token: Token, highest: Option<Token>) -> String {
    match highest {
        Some(highest) => format!("the token {token} is too far above {highest}, the highest so far, to be true"),
        None => format!("the token {token} is too high to be the first of its name"),
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("fence", &self.fence.describe())
            .field("rule", &self.rule)
            .field("keys", &self.keys)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::MemoryFence;

    fn sequencer(mode: &str, token: u64) -> Sequencer {
        let kind = if mode.contains('/') { "semaphore" } else { "rw-lock" };
        format!("tenure1:{kind}:{mode}:{token}:0:a").parse().unwrap()
    }

    fn gate() -> Gate {
        Gate::new(Arc::new(MemoryFence::new()))
    }

    async fn kind(gate: &Gate, mode: &str, token: u64) -> Option<ErrorKind> {
        gate.pass("a", &sequencer(mode, token)).await.err().map(|error| error.kind())
    }

    #[tokio::test]
    async fn readers_are_fenced_against_writers_and_not_against_each_other() {
        let gate = gate();
        assert_eq!(kind(&gate, "shared", 5).await, None);
        assert_eq!(kind(&gate, "shared", 4).await, None, "an earlier reader is still inside");
        assert_eq!(kind(&gate, "exclusive", 7).await, None);
        assert_eq!(kind(&gate, "shared", 5).await, Some(ErrorKind::Lost));
        assert_eq!(kind(&gate, "shared", 9).await, None);
        assert_eq!(kind(&gate, "exclusive", 8).await, None, "a reader's token is not remembered");
    }

    #[tokio::test]
    async fn permits_are_fenced_only_if_all_were_taken() {
        let gate = gate();
        assert_eq!(kind(&gate, "1/2", 5).await, Some(ErrorKind::Unsupported));
        assert_eq!(kind(&gate, "2/2", 5).await, None);
        assert_eq!(kind(&gate, "1/1", 4).await, Some(ErrorKind::Lost));
    }

    #[tokio::test]
    async fn another_locks_sequencer_is_no_key() {
        let gate = gate();
        let refused = gate.pass("b", &sequencer("exclusive", 5)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Mismatch);
        assert_eq!(gate.fence().highest(&LockName::new("b").unwrap()).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_does_not_verify_is_not_shown() {
        let gate = gate().keys(Keys::generate("one").unwrap());
        let refused = gate.pass("a", &sequencer("exclusive", 5)).await.unwrap_err().to_string();
        assert!(refused.contains("not signed") && refused.contains("\"a\""), "{refused}");
        assert_eq!(gate.fence().highest(&LockName::new("a").unwrap()).await.unwrap(), None);
    }

    /// A number can be forged to lock everybody out for good; a signature cannot.
    #[tokio::test]
    async fn a_forged_huge_token_does_not_pass_a_gate_with_keys() {
        let keys = Keys::generate("one").unwrap();
        let gate = gate().keys(keys.clone());
        let signed = sequencer("exclusive", 5).signed_with(&keys);
        gate.pass("a", &signed).await.unwrap();
        let mut changed = signed.clone();
        changed.token = Token::new(i64::MAX as u64);
        let others = sequencer("exclusive", i64::MAX as u64).signed_with(&Keys::generate("one").unwrap());
        for forged in [sequencer("exclusive", i64::MAX as u64), changed, others] {
            assert_eq!(gate.pass("a", &forged).await.unwrap_err().kind(), ErrorKind::BadSignature, "{forged}");
        }
        assert_eq!(gate.fence().highest(&LockName::new("a").unwrap()).await.unwrap(), Some(Token::new(5)));
        gate.pass("a", &signed).await.unwrap();
    }

    #[tokio::test]
    async fn a_token_too_high_to_be_true_changes_nothing() {
        let gate = gate().rule(Rule::max_step(100));
        assert_eq!(kind(&gate, "exclusive", 50).await, None);
        assert_eq!(kind(&gate, "exclusive", 1_000).await, Some(ErrorKind::BadOption));
        assert_eq!(kind(&gate, "shared", 1_000).await, Some(ErrorKind::BadOption));
        assert_eq!(kind(&gate, "exclusive", 51).await, None);
    }

    /// Let through, stopped, overtaken: with `write` there is nothing to be overtaken in.
    #[tokio::test]
    async fn nobody_comes_between_the_check_and_the_write() {
        let (gate, log) = (gate(), Arc::new(Mutex::new(Vec::new())));
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (first, second) = (sequencer("exclusive", 1), sequencer("exclusive", 2));
        let of_slow = Arc::clone(&log);
        let slow = gate.write("a", &first, async move {
            gone.await.unwrap();
            of_slow.lock().unwrap().push(1);
        });
        let of_quick = Arc::clone(&log);
        let quick = async {
            let mut quick = std::pin::pin!(gate.write("a", &second, async move { of_quick.lock().unwrap().push(2) }));
            for _ in 0..10 {
                assert!(futures_pending(quick.as_mut()).await, "it waits for its turn");
            }
            go.send(()).unwrap();
            quick.await
        };
        let (one, two) = tokio::join!(slow, quick);
        one.unwrap();
        two.unwrap();
        assert_eq!(*log.lock().unwrap(), [1, 2]);
    }

    /// Whoever asked for a write goes away in the middle of it: the write goes on, and nobody overtakes it.
    #[tokio::test]
    async fn a_write_that_nobody_waits_for_any_more_keeps_its_turn() {
        let (gate, log) = (gate(), Arc::new(Mutex::new(Vec::new())));
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let (first, second) = (sequencer("exclusive", 1), sequencer("exclusive", 2));
        let of_slow = Arc::clone(&log);
        let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
        let slow = gate.write("a", &first, async move {
            begun.send(()).unwrap();
            gone.await.unwrap();
            of_slow.lock().unwrap().push(1);
        });
        tokio::select! {
            _ = slow => unreachable!("it waits for us"),
            begun = has_begun => begun.unwrap(),
        }
        let of_quick = Arc::clone(&log);
        let mut quick = std::pin::pin!(gate.write("a", &second, async move { of_quick.lock().unwrap().push(2) }));
        for _ in 0..10 {
            assert!(futures_pending(quick.as_mut()).await, "it waits for its turn");
        }
        go.send(()).unwrap();
        quick.await.unwrap();
        assert_eq!(*log.lock().unwrap(), [1, 2]);
    }

    /// Whoever made its sequencer up is refused at once, and not when its turn comes.
    #[tokio::test]
    async fn what_does_not_verify_takes_no_turn() {
        let keys = Keys::generate("one").unwrap();
        let gate = gate().keys(keys.clone());
        let _turn = gate.enter("a", &sequencer("exclusive", 5).signed_with(&keys)).await.unwrap();
        let unsigned = sequencer("exclusive", 6);
        let mut forged = std::pin::pin!(gate.enter("a", &unsigned));
        assert!(!futures_pending(forged.as_mut()).await);
    }

    async fn futures_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        tokio::task::yield_now().await;
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
    }
}
