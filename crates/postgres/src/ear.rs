//! The connection on which a client is told: one for all its waiters, whatever they wait for.
//!
//! It listens to the client's own channel. Whether what is sent there arrives is not believed but tried: a message to ourselves
//! goes out on another connection, and only when it has come do the server's functions learn that we listen, and the
//! engine that it is told. Behind a pooler that lends connections for a transaction it never comes; the engine then looks by
//! itself. While that is not settled nothing else is sent on this connection: a pooler would deliver the message to
//! whoever happens to be talking at that moment, and we would believe what is not so. A machine that stood still looks like a
//! pooler, so after a while it is tried again, on another connection.
//!
//! Who can interleave: any task may find the ear missing and start making one, in the background; one at a time does. What the
//! server says comes on the driver's task, in order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tenure_core::Instant;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::desk::Shared;
use crate::link::{Live, Pushes};
use crate::verbs;

/// How long our message to ourselves may take.
const PROOF_LIMIT: Duration = Duration::from_secs(1);
/// How long one to which nothing came is believed to be deaf. Behind a pooler it costs a connection each time.
const AGAIN: Duration = Duration::from_secs(20);

/// How often the server's functions are told that we listen, before it is left to the next ear.
const TRIES: u32 = 8;

/// Where the ear stands.
#[derive(Default)]
pub(crate) struct Ear {
    /// Somebody is making it.
    is_in_the_making: AtomicBool,
    /// Messages arrive on it.
    listens: AtomicBool,
    /// How many have been made: what becomes of an earlier one says nothing of this one.
    made: AtomicU64,
    /// Since when it has not been known to hear; 0 if it is, or if there is none.
    deaf_since: AtomicU64,
}

impl Ear {
    /// Whether messages arrive.
    pub(crate) fn listens(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    /// Whether it has been deaf for so long that another one is worth a try.
    fn is_worth_another(&self) -> bool {
        let deaf_since = Instant::from_nanos(self.deaf_since.load(Ordering::Relaxed));
        deaf_since.as_nanos() > 0 && Instant::now().since(deaf_since) > AGAIN
    }
}

impl Shared {
    /// The ear's connection, if it is settled what it hears. Else one is made in the background.
    pub(crate) fn ear(self: &Arc<Self>) -> Option<Arc<Live>> {
        if self.ear.is_in_the_making.load(Ordering::Acquire) {
            return None;
        }
        let mut open = self.ear_link.open();
        if self.ear.is_worth_another()
            && let Some(deaf) = open.take()
        {
            deaf.give_up();
        }
        if open.is_none() && !self.ear.is_in_the_making.swap(true, Ordering::AcqRel) {
            let Some(runtime) = self.home().or_else(|| Handle::try_current().ok()) else {
                self.ear.is_in_the_making.store(false, Ordering::Release);
                return None;
            };
            let shared = Arc::downgrade(self);
            let making = Making(Arc::downgrade(self));
            runtime.spawn(async move {
                let _making = making; // wherever it ends, with its runtime too, another one may be begun
                Shared::make_ear(shared).await;
            });
        }
        open
    }

    async fn make_ear(shared: Weak<Shared>) {
        let Some(this) = shared.upgrade() else { return };
        let made = this.ear.made.fetch_add(1, Ordering::AcqRel) + 1;
        this.silenced(); // whatever the last one heard
        this.ear.deaf_since.store(0, Ordering::Relaxed);
        let (sender, proof) = oneshot::channel();
        let nonce = format!("nonce {:016x}", this.me ^ Instant::now().as_nanos());
        let pushes = Arc::new(Heard {
            shared,
            made,
            channel: this.layout.channel(this.me),
            nonce: nonce.clone(),
            proof: Mutex::new(Some(sender)),
        });
        let Ok(live) = this.ear_link.make(pushes).await else { return };
        this.ear.deaf_since.store(Instant::now().as_nanos(), Ordering::Relaxed); // until it is known to hear
        let channel = this.layout.channel(this.me);
        if live.batch(&format!("LISTEN \"{channel}\""), "listening").await.is_err() {
            return;
        }
        let told = async {
            let asks = this.asks.live().await.ok()?;
            asks.batch(&format!("NOTIFY \"{channel}\", '{nonce}'"), "trying whether messages arrive").await.ok()?;
            proof.await.ok()
        };
        if !matches!(tokio::time::timeout(PROOF_LIMIT, told).await, Ok(Some(()))) {
            // Nobody else should get what is sent to us: whoever has the pooler's connection next.
            let _ = live.batch(&format!("UNLISTEN \"{channel}\""), "listening no more").await;
            return;
        }
        this.ear.listens.store(true, Ordering::Release);
        this.start_being_told(&live).await;
    }

    /// First the server's functions, then the engine: whoever is let in after this is told, and whoever was before it is looked
    /// after once more. In between, whoever is at a name of ours is waited for: it may have seen that we do not listen, and let
    /// one of us in without a word, which a look before its commit would not see. Somebody's own transaction that has such a name is not
    /// waited for: it lets nobody in, and may last for hours. One that is about to have it hides from us who is there before it, as do very
    /// many names: whom those let in, the next beat finds.
    async fn start_being_told(&self, live: &Live) {
        let mut tries = 0;
        let told = loop {
            let asked = match live.send(&self.verbs.hear(self.me, &self.notify_key), "listening").await {
                Ok(_) => live.send(&self.verbs.outlast(self.me), "listening").await,
                failed => failed,
            };
            tries += 1;
            match asked {
                // Where transactions are REPEATABLE READ by default, whoever was at the row meanwhile is in the way.
                Err(failure) if failure.again && live.is_open() && tries < TRIES => {}
                asked => break asked.is_ok(),
            }
        };
        if told {
            self.listener().listening();
            self.ear.deaf_since.store(0, Ordering::Relaxed);
        }
        if !live.is_open() {
            self.ear.listens.store(false, Ordering::Release);
            self.listener().silenced(); // also where that was said before we said that we listen
        }
    }

    /// An ask that was under way while the ear was made has left a waiter of which the server does not know that it listens.
    pub(crate) fn tell_that_we_listen(self: &Arc<Self>) {
        let (shared, runtime) = (Arc::clone(self), self.home().or_else(|| Handle::try_current().ok()));
        if let (Some(live), Some(runtime)) = (self.ear_link.open(), runtime) {
            runtime.spawn(async move { shared.start_being_told(&live).await });
        }
    }

    fn silenced(&self) {
        if self.ear.listens.swap(false, Ordering::AcqRel) {
            self.listener().silenced();
        }
    }

    /// Fetches what others had to say.
    async fn fetch_mail(self: Arc<Self>) {
        let Some(live) = self.ear_link.open() else { return };
        let request =
            self.verbs.touch(self.me, false, Some(&self.notify_key), tenure_core::lease::ALIVE, std::iter::empty());
        let Ok(rows) = live.send(&request, "fetching messages").await else { return };
        if let Ok(said) = verbs::touched(&rows, 0) {
            said.value.mail.into_iter().for_each(|message| self.listener().told(message));
        }
    }
}

/// Whatever came of it, nobody is making an ear any more.
struct Making(Weak<Shared>);

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.ear.is_in_the_making.store(false, Ordering::Release);
        }
    }
}

/// What hears the connection.
struct Heard {
    shared: Weak<Shared>,
    /// Which one it is.
    made: u64,
    channel: String,
    nonce: String,
    proof: Mutex<Option<oneshot::Sender<()>>>,
}

impl Pushes for Heard {
    fn said(&self, channel: &str, payload: &str) {
        if channel != self.channel {
            return; // a pooler's connection may have listened for somebody else before
        }
        if payload == self.nonce {
            let proof = self.proof.lock().unwrap_or_else(PoisonError::into_inner).take();
            let _ = proof.map(|proof| proof.send(())); // whoever waited for it may have given up
            return;
        }
        let Some(shared) = self.shared.upgrade() else { return };
        match verbs::told(payload, &shared.notify_key) {
            Ok(Some(message)) => shared.listener().told(message),
            Ok(None) => drop(tokio::spawn(shared.fetch_mail())),
            Err(_) => {} // not one of ours
        }
    }

    fn over(&self) {
        if let Some(shared) = self.shared.upgrade()
            && shared.ear.made.load(Ordering::Acquire) == self.made
        {
            shared.silenced();
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::in_time;
    use tenure_testkit::servers::postgres::Postgres;
    use tokio_postgres::NoTls;

    use crate::schema::Layout;
    use crate::verbs::Verbs;

    async fn connect() -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(&Postgres::shared().url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// A transaction has found a name whose only waiter was thought dead, and is one of ours: whoever waits for it would have the rows of
    /// other names meanwhile.
    #[tokio::test]
    async fn a_transaction_that_has_a_name_is_not_outlasted() {
        let layout = Layout::new("public", &format!("o{}_", std::process::id())).unwrap();
        let (mut theirs, ours) = (connect().await, connect().await);
        ours.batch_execute(&layout.one_at_a_time(&layout.ddl())).await.unwrap();
        let waits = "INSERT INTO {name} (name, room, number, line, used) SELECT name, 1, 1, 1, 1 FROM unnest(ARRAY['a', 'x']) name;
                     INSERT INTO {ticket} (id, name, seq, waiting, mode, take, room, client, ttl, handover_ttl, lock_delay, since, pid, host, note)
                     SELECT gen_random_uuid(), name, 1, true, 0, 1, 1, 7, 1, 1, 0, 1, 1, '', '' FROM unnest(ARRAY['a', 'x']) name";
        ours.batch_execute(&layout.fill(waits)).await.unwrap();
        let tx = theirs.transaction().await.unwrap();
        let lock = format!("SELECT {}('x', 0)", layout.full("in_transaction"));
        assert!(tx.query_one(&lock, &[]).await.unwrap().get::<_, i64>(0) > 0, "its waiter is dead");
        let verbs = Verbs::new(&layout);
        let request = verbs.outlast(7);
        let rows = in_time("it is over", ours.query_typed(request.sql, &request.params())).await.unwrap();
        assert_eq!(rows.len(), 1, "the other name was waited for");
        tx.commit().await.unwrap();
    }
}
