//! Which fence, for the commands that have one. As with the store, the flag wins over the environment and a URL over a file, and clap
//! never sees the variables' values.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tenure::fence::Fence;

use crate::failure::Failure;
use crate::print::Printer;
use crate::store::{Source, has_password, refuse_memory, set};

/// Where the fence is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FenceArgs {
    /// The fence: sqlite:///path, postgres://host/database, mysql://host/database, redis://host (or redis+sentinel, redis+cluster)
    /// [env: TENURE_FENCE]
    #[arg(long, value_name = "URL", conflicts_with = "fence_file")]
    pub(crate) fence: Option<String>,

    /// A file whose first line is the fence's URL: the place for one with a password [env: TENURE_FENCE_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) fence_file: Option<PathBuf>,
}

impl FenceArgs {
    /// Opens it.
    pub(crate) async fn open(&self, printer: &Printer) -> Result<Arc<dyn Fence>, Failure> {
        if self.fence.as_deref().is_some_and(has_password) {
            printer.warning("the fence's password is in the command line, where everybody on this host can read it");
        }
        let source = self.source()?;
        source.warn("fence", printer);
        let url = source.url().unwrap_or_default();
        refuse_memory(url)?;
        Ok(tenure::fence(url).await?)
    }

    /// The one that flags name, and not the environment.
    pub(crate) fn named(&self) -> Result<Option<String>, Failure> {
        Ok(self.by_flags()?.and_then(|source| source.url().map(str::to_owned)))
    }

    fn by_flags(&self) -> Result<Option<Source>, Failure> {
        match (&self.fence, &self.fence_file) {
            (Some(url), _) => by_url(url.clone()).map(Some),
            (None, Some(path)) => Source::read("--fence-file", path).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn source(&self) -> Result<Source, Failure> {
        if let Some(source) = self.by_flags()? {
            return Ok(source);
        }
        if let Some(url) = set(FENCE) {
            return by_url(url.into_string().map_err(|_| Failure::new(format!("{FENCE} is not UTF-8 text")))?);
        }
        match set(FENCE_FILE) {
            Some(path) => Source::read("--fence-file", path.as_ref()),
            None => Err(Failure::new("which fence? There is no default: it belongs to what is protected")
                .with_hint("Say --fence sqlite:///var/lib/app/fence.db, or another URL, or set TENURE_FENCE")),
        }
    }
}

/// What is no URL may be a secret: it is not shown.
fn by_url(url: String) -> Result<Source, Failure> {
    if !url.contains(':') {
        return Err(Failure::new("the fence's URL has no scheme").with_hint(
            "A file is sqlite:///path/to/fence.db, or sqlite://fence.db in the current directory; a server is redis://host",
        ));
    }
    Ok(Source::Url(url))
}

const FENCE: &str = "TENURE_FENCE";
const FENCE_FILE: &str = "TENURE_FENCE_FILE";
