//! The rules of a fenced service: which requests are checked, against which lock, and what is read from them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::request::Parts;
use tenure_core::fence::Gate;
use tenure_core::{Error, ErrorKind, LockName, Mode, Result, Sequencer};
use tower_layer::Layer;

use crate::refusal::Refusal;
use crate::{Fenced, Problem, SEQUENCER};

/// Longer than any sequencer, signed, with the longest name and all of it escaped.
const LONGEST: usize = 2048;

/// Makes services that handle a request only if its `Tenure-Sequencer` is not too late. See the [crate's page](crate).
///
/// Put it where the data is written and nowhere else, and inside of whatever limits time and size: a request keeps its lock's name for as
/// long as it is handled.
#[derive(Clone)]
pub struct FenceLayer(pub(crate) Arc<Rules>);

#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) gate: Gate,
    name: Naming,
    /// Those that are checked; `None` for all but the harmless.
    methods: Option<Arc<[Method]>>,
    optional: bool,
    readers_write: bool,
    pub(crate) at_once: bool,
    pub(crate) patience: Duration,
}

#[derive(Clone)]
enum Naming {
    Fixed(LockName),
    By(Arc<NamedBy>),
}

type NamedBy = dyn Fn(&Parts) -> Option<String> + Send + Sync;

impl FenceLayer {
    /// Everything behind this layer is protected by the lock `name`.
    pub fn new(gate: Gate, name: impl AsRef<str>) -> Result<Self> {
        Ok(Self::with(gate, Naming::Fixed(LockName::new(name)?)))
    }

    /// Each request is for something that has a lock of its own, whose name this says. Requests for which it gives `None` are refused.
    ///
    /// Where one thing can be reached by two paths (`/invoices/7`, `/invoices/%37`, `/INVOICES/7`), give both the same name, or none
    /// to one of them: a name is what the fence remembers a token for. A holder cannot choose: it must hold the lock of the very name.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tenure_core::fence::{Gate, MemoryFence};
    /// # let gate = Gate::new(Arc::new(MemoryFence::new()));
    /// tenure_http::FenceLayer::named_by(gate, |request| {
    ///     let id: u64 = request.uri.path().strip_prefix("/invoices/")?.parse().ok()?;
    ///     Some(format!("invoices/{id}"))
    /// });
    /// ```
    pub fn named_by(gate: Gate, name: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::with(gate, Naming::By(Arc::new(name)))
    }

    fn with(gate: Gate, name: Naming) -> Self {
        let rules = Rules {
            gate,
            name,
            methods: None,
            optional: false,
            readers_write: false,
            at_once: false,
            patience: Duration::from_secs(10),
        };
        FenceLayer(Arc::new(rules))
    }

    fn but(self, change: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = Arc::unwrap_or_clone(self.0);
        change(&mut rules);
        FenceLayer(Arc::new(rules))
    }

    /// Checks requests with these methods, and no others. By default it is all but `GET`, `HEAD` and `OPTIONS`.
    pub fn methods(self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.but(|rules| rules.methods = Some(methods.into_iter().collect()))
    }

    /// Lets requests without a sequencer through, unchecked: for the days in which clients learn to send one. Handlers see the
    /// difference by the [`Sequencer`] in the request's extensions. One that is sent is checked as ever.
    pub fn optional(self) -> Self {
        self.but(|rules| rules.optional = true)
    }

    /// Lets readers of an `rw_lock` through with any method. By default they may come with `GET`, `HEAD` and `OPTIONS` only, if these are
    /// checked at all: several readers are inside together, so what one of them writes another may overwrite. For gRPC, where
    /// everything is a `POST`.
    pub fn readers_write(self) -> Self {
        self.but(|rules| rules.readers_write = true)
    }

    /// Handles requests of the same name side by side: only the check is done before. For services that check again where they write, in one
    /// transaction; anywhere else a holder that was let through and then stands still writes after the next one.
    pub fn at_once(self) -> Self {
        self.but(|rules| rules.at_once = true)
    }

    /// For how long a request waits for an earlier one of the same name, and for the fence; then it is refused with 503, not begun. 10 s
    /// if nothing is said.
    pub fn patience(self, patience: Duration) -> Self {
        self.but(|rules| rules.patience = patience)
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced { inner, rules: Arc::clone(&self.0) }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.name {
            Naming::Fixed(name) => name.as_str(),
            Naming::By(_) => "by the request",
        };
        f.debug_struct("FenceLayer")
            .field("gate", &self.gate)
            .field("name", &name)
            .field("methods", &self.methods)
            .field("optional", &self.optional)
            .field("readers_write", &self.readers_write)
            .field("at_once", &self.at_once)
            .field("patience", &self.patience)
            .finish()
    }
}

impl Rules {
    /// Whether requests with this method are checked.
    pub(crate) fn checks(&self, method: &Method) -> bool {
        match &self.methods {
            Some(methods) => methods.contains(method),
            None => !is_harmless(method),
        }
    }

    /// What the request shows, and the lock that it must be one of; `None` if it shows nothing and need not.
    pub(crate) fn read(&self, request: &Parts) -> Result<Option<(LockName, Sequencer)>, Refusal> {
        let mut shown = request.headers.get_all(SEQUENCER).iter();
        let Some(first) = shown.next() else {
            let missing = "the request has no Tenure-Sequencer, and what it is for is protected by a lock";
            return if self.optional { Ok(None) } else { Err(bad(Problem::Missing, missing)) };
        };
        if first.len() > LONGEST {
            return Err(bad(Problem::Oversized, "the Tenure-Sequencer is longer than any"));
        }
        if shown.next().is_some() {
            return Err(bad(Problem::Malformed, "the request has more than one Tenure-Sequencer"));
        }
        let text = first.to_str().map_err(|_| bad(Problem::Malformed, "the Tenure-Sequencer is not printable ASCII"))?;
        let sequencer: Sequencer = text.parse().map_err(|error| Refusal::new(Problem::Malformed, error))?;
        let name = self.name(request).map_err(|refusal| refusal.about(&sequencer))?;
        if sequencer.mode == Mode::Shared && !self.readers_write && !is_harmless(&request.method) {
            let what = "the sequencer is a reader's, and this request writes";
            return Err(bad(Problem::Reader, what).about(&sequencer));
        }
        Ok(Some((name, sequencer)))
    }

    fn name(&self, request: &Parts) -> Result<LockName, Refusal> {
        match &self.name {
            Naming::Fixed(name) => Ok(name.clone()),
            Naming::By(name) => {
                let name =
                    name(request).ok_or_else(|| bad(Problem::Elsewhere, "no lock protects what this request is for"))?;
                LockName::new(name).map_err(|error| Refusal::new(Problem::Elsewhere, error))
            }
        }
    }
}

fn is_harmless(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

fn bad(problem: Problem, what: &str) -> Refusal {
    Refusal::new(problem, Error::new(ErrorKind::BadOption, what))
}
