//! Which fence, for the commands that have one. As with the store, the flag wins over the environment and a URL over a file, and clap
//! never sees the variables' values.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tenure::fence::Fence;

use crate::failure::Failure;
use crate::print::Printer;
use crate::store::{Source, has_a_secret, set};

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
        if self.fence.as_deref().is_some_and(has_a_secret) {
            printer.note("the fence's password is in the command line, where everybody on this host can read it");
        }
        Ok(tenure::fence(self.url()?).await?)
    }

    /// The one that flags name, and not the environment.
    pub(crate) fn named(&self) -> Result<Option<String>, Failure> {
        match (&self.fence, &self.fence_file) {
            (Some(url), _) => Ok(Some(url.clone())),
            (None, Some(path)) => from_file(path.clone()).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn url(&self) -> Result<String, Failure> {
        if let Some(url) = self.named()? {
            return Ok(url);
        }
        if let Some(url) = set(FENCE) {
            return url.into_string().map_err(|_| Failure::new(format!("{FENCE} is not UTF-8 text")));
        }
        match set(FENCE_FILE) {
            Some(path) => from_file(path.into()),
            None => Err(Failure::new("which fence? There is no default: it belongs to what is protected")
                .with_hint("Say --fence sqlite:///var/lib/app/fence.db, or another URL, or set TENURE_FENCE")),
        }
    }
}

fn from_file(path: PathBuf) -> Result<String, Failure> {
    let source = Source::read("--fence-file", &path)?;
    Ok(source.url().unwrap_or_default().to_owned())
}

const FENCE: &str = "TENURE_FENCE";
const FENCE_FILE: &str = "TENURE_FENCE_FILE";
