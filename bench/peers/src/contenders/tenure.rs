//! tenure itself, both kinds that exclude, and on PostgreSQL both ways to hold: renewal, loss signal and fencing token
//! included, none of which can be left out.

use std::future::Future;

use tenure::{Client, Error, ErrorKind};

use super::{Contender, Failure, Lock, TTL};

macro_rules! contender {
    ($contender:ident, $make:ident -> $lock:ty, $parameters:literal) => {
        pub(crate) struct $contender(Client);

        impl Contender for $contender {
            type Lock = $lock;

            async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
                tenure::connect(&format!("{url}{}", $parameters)).await.map($contender).map_err(Failure::broken)
            }

            async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
                self.0.$make(name).and_then(|mutex| mutex.ttl(TTL)).map_err(Failure::broken)
            }
        }
    };
}

contender!(Mutex, mutex -> tenure::Mutex, "");
contender!(Fair, fair_mutex -> tenure::FairMutex, "");
contender!(Session, mutex -> tenure::Mutex, "?liveness=session");

macro_rules! lock {
    ($lock:ty) => {
        impl Lock for $lock {
            async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
            where
                F: Future + Send + 'static,
                F::Output: Send + 'static,
            {
                let guard = self.lock().await.map_err(Failure::broken)?;
                let output = inside.await;
                guard.release().await.map_err(released)?;
                Ok(output)
            }
        }
    };
}

lock!(tenure::Mutex);
lock!(tenure::FairMutex);

fn released(error: Error) -> Failure {
    if error.kind() == ErrorKind::Lost { Failure::Lost } else { Failure::broken(error) }
}
