//! A refusal, in words for the client: a problem (RFC 9457), or a status of gRPC. What only the server's people may see goes along
//! as an extension of the response.

use std::fmt::Write as _;
use std::sync::Arc;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use tenure_core::{Error, ErrorKind, LockName, Sequencer, Token};

use crate::FencedBody;

/// Why a request was refused; the [crate's page](crate#problems) has a paragraph on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Problem {
    /// Somebody with a higher token has been here: the holder comes too late.
    Stale,
    /// There is no sequencer.
    Missing,
    /// The sequencer cannot be read, or there are several.
    Malformed,
    /// It is longer than any.
    Oversized,
    /// It is not signed, not with a key that is known here, or was changed since.
    Forged,
    /// It is one of another lock.
    Elsewhere,
    /// Its holder is not alone inside.
    Reader,
    /// Its token is too high to be true.
    Implausible,
    /// An earlier request of the same name has not been handled yet.
    Busy,
    /// The fence did not answer.
    Unreachable,
    /// The fence answered with an error of its own.
    Broken,
}

impl Problem {
    /// One word: what the problem's `type` ends with.
    pub fn as_str(self) -> &'static str {
        match self {
            Problem::Stale => "stale",
            Problem::Missing => "missing",
            Problem::Malformed => "malformed",
            Problem::Oversized => "oversized",
            Problem::Forged => "forged",
            Problem::Elsewhere => "elsewhere",
            Problem::Reader => "reader",
            Problem::Implausible => "implausible",
            Problem::Busy => "busy",
            Problem::Unreachable => "unreachable",
            Problem::Broken => "broken",
        }
    }

    /// The status of the response, where it is not gRPC's.
    pub fn status(self) -> StatusCode {
        match self {
            Problem::Stale => StatusCode::PRECONDITION_FAILED,
            Problem::Missing => StatusCode::PRECONDITION_REQUIRED,
            Problem::Malformed => StatusCode::BAD_REQUEST,
            Problem::Oversized => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Problem::Forged | Problem::Elsewhere | Problem::Reader | Problem::Implausible => StatusCode::FORBIDDEN,
            Problem::Busy | Problem::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Problem::Broken => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// gRPC's status, by its number.
    pub fn grpc_status(self) -> u16 {
        match self {
            Problem::Stale => 9,
            Problem::Missing | Problem::Malformed | Problem::Oversized => 3,
            Problem::Forged | Problem::Elsewhere | Problem::Reader | Problem::Implausible => 7,
            Problem::Busy | Problem::Unreachable => 14,
            Problem::Broken => 13,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Problem::Stale => "The lock was lost",
            Problem::Missing => "A sequencer is required",
            Problem::Malformed => "The sequencer cannot be read",
            Problem::Oversized => "The sequencer is too long",
            Problem::Forged => "The sequencer cannot be trusted",
            Problem::Elsewhere => "Another lock is required",
            Problem::Reader => "The holder is not alone",
            Problem::Implausible => "The token is too high to be true",
            Problem::Busy => "An earlier request is still being handled",
            Problem::Unreachable => "The fence cannot be asked",
            Problem::Broken => "The fence failed",
        }
    }

    fn of(kind: ErrorKind) -> Problem {
        match kind {
            ErrorKind::Lost => Problem::Stale,
            ErrorKind::BadSignature => Problem::Forged,
            ErrorKind::Mismatch => Problem::Elsewhere,
            ErrorKind::Unsupported => Problem::Reader,
            ErrorKind::BadOption => Problem::Implausible,
            ErrorKind::Unavailable => Problem::Unreachable,
            _ => Problem::Broken,
        }
    }
}

/// What a refused response has among its extensions: the problem, and the whole error, for the server's log. Clients see neither.
#[derive(Clone, Debug)]
pub struct Refused {
    problem: Problem,
    error: Arc<Error>,
}

impl Refused {
    /// What it was.
    pub fn problem(&self) -> Problem {
        self.problem
    }

    /// The error whole, with the place of the fence in it.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

/// A refusal that is to be answered.
pub(crate) struct Refusal {
    problem: Problem,
    error: Error,
    name: Option<LockName>,
    token: Option<Token>,
    highest: Option<Token>,
}

impl Refusal {
    pub(crate) fn new(problem: Problem, error: Error) -> Self {
        Refusal { problem, error, name: None, token: None, highest: None }
    }

    /// What a gate has said.
    pub(crate) fn by_gate(error: Error) -> Self {
        Refusal::new(Problem::of(error.kind()), error)
    }

    pub(crate) fn problem(&self) -> Problem {
        self.problem
    }

    pub(crate) fn about(mut self, sequencer: &Sequencer) -> Self {
        self.name = Some(sequencer.name.clone());
        self.token = Some(sequencer.token);
        self
    }

    pub(crate) fn shown(mut self, highest: Option<Token>) -> Self {
        self.highest = highest;
        self
    }

    pub(crate) fn into_response<B>(self, in_grpc: bool) -> Response<FencedBody<B>> {
        let detail = self.detail();
        let mut response = match in_grpc {
            true => self.grpc(&detail),
            false => self.json(&detail),
        };
        if matches!(self.problem, Problem::Busy | Problem::Unreachable) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(Refused { problem: self.problem, error: Arc::new(self.error) });
        response
    }

    fn json<B>(&self, detail: &str) -> Response<FencedBody<B>> {
        let mut problem = serde_json::json!({
            "type": format!("https://docs.rs/tenure-http/latest/tenure_http/#{}", self.problem.as_str()),
            "title": self.problem.title(),
            "status": self.problem.status().as_u16(),
            "detail": detail,
        });
        let known = [
            ("name", self.name.as_ref().map(|name| name.as_str().into())),
            ("token", self.token.map(|token| token.get().into())),
            ("highest", self.highest.map(|highest| highest.get().into())),
        ];
        for (key, value) in known {
            if let Some(value) = value {
                problem[key] = value;
            }
        }
        let mut response = Response::new(FencedBody::refused(Some(format!("{problem}\n"))));
        *response.status_mut() = self.problem.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response
    }

    /// An answer of headers alone, which is how gRPC says no at once.
    fn grpc<B>(&self, detail: &str) -> Response<FencedBody<B>> {
        let mut response = Response::new(FencedBody::refused(None));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", self.problem.grpc_status().into());
        headers.insert("grpc-message", HeaderValue::try_from(escaped(detail)).expect("escaped, it is printable ASCII"));
        response
    }

    /// For whoever sent the request. An error's own text says where the fence is and more; that is not for everybody.
    fn detail(&self) -> String {
        let (name, token) = (self.name.as_ref().map_or("", LockName::as_str), self.token.map_or(0, Token::get));
        match self.problem {
            Problem::Stale => {
                let shown = self.highest.map_or_else(String::new, |highest| format!(" and has shown {highest} here"));
                format!(
                    "The token {token} of the lock {name:?} comes too late: somebody else has held the lock since{shown}. Nothing was \
                     done. Stop what runs under this hold, and take the lock anew."
                )
            }
            Problem::Missing => {
                "What this request is for is protected by a lock. Hold it, and send its sequencer in the header \
                                 Tenure-Sequencer."
                    .to_owned()
            }
            Problem::Oversized => "The header Tenure-Sequencer is longer than any sequencer.".to_owned(),
            Problem::Malformed => format!("The header Tenure-Sequencer: {}.", self.error),
            Problem::Forged => format!(
                "The sequencer of the lock {name:?} is not signed with a key that is known here, or was changed since. Ask whoever \
                 runs this service for the key that holders sign with."
            ),
            Problem::Elsewhere => format!(
                "The sequencer is one of the lock {name:?}, which is not the one that protects what this request is for."
            ),
            Problem::Reader => format!(
                "The holder of the lock {name:?} is not alone inside: a reader, or one of several permits. Whoever writes here holds \
                 the lock alone."
            ),
            Problem::Implausible => {
                let over = self.highest.map_or_else(String::new, |highest| format!(", over {highest}, the highest so far"));
                format!(
                    "The token {token} of the lock {name:?} is too high to be true{over}. Does it come from the store that this \
                     service is used with, and are both clocks right?"
                )
            }
            Problem::Busy => format!(
                "An earlier request under the lock {name:?} has not been handled yet, and requests under one lock are handled one \
                 after the other. This one was not begun."
            ),
            Problem::Unreachable => "Whether this request comes too late cannot be told now. It was not handled.".to_owned(),
            Problem::Broken => "Whether this request comes too late could not be told. It was not handled.".to_owned(),
        }
    }
}

/// As gRPC writes its messages: whatever is not printable ASCII, and `%`, as `%XX`.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(byte as char),
            _ => write!(escaped, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    escaped
}
