//! The client's side: a guard becomes a header.

use http::request::Builder;
use http::{HeaderName, HeaderValue};
use tenure_core::{Guard, Sequencer};

/// The header with the sequencer: `Tenure-Sequencer`.
pub const SEQUENCER: HeaderName = HeaderName::from_static("tenure-sequencer");

/// The header that says which hold a request is made under.
///
/// It does not look whether the hold may still be trusted; [`Guard::check`] before the request does, and saves a request that
/// would be refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// let (name, value) = tenure_http::header(&guard); // for reqwest: .header(name, value)
/// assert_eq!(name, "tenure-sequencer");
/// assert!(value.to_str().unwrap().starts_with("tenure1:mutex:exclusive:"));
/// # Ok(()) }
/// ```
pub fn header(guard: &Guard) -> (HeaderName, HeaderValue) {
    header_of(&guard.sequencer())
}

/// The same from a sequencer, as blocking guards and transactions give one.
pub fn header_of(sequencer: &Sequencer) -> (HeaderName, HeaderValue) {
    let mut value = HeaderValue::try_from(sequencer.to_string()).expect("a sequencer is printable ASCII");
    value.set_sensitive(true); // whoever has it can come as this holder: not for logs, not for header compression
    (SEQUENCER, value)
}

/// Requests that say which hold they are made under.
pub trait BuilderExt {
    /// Adds the header of [`header`].
    fn fenced(self, guard: &Guard) -> Self;
    /// Adds the header of [`header_of`].
    fn fenced_by(self, sequencer: &Sequencer) -> Self;
}

impl BuilderExt for Builder {
    fn fenced(self, guard: &Guard) -> Self {
        self.fenced_by(&guard.sequencer())
    }

    fn fenced_by(self, sequencer: &Sequencer) -> Self {
        let (name, value) = header_of(sequencer);
        self.header(name, value)
    }
}
