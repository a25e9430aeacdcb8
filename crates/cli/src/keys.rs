//! Which keys sequencers are signed and verified with.
//!
//! The flag wins over the environment. It is the path of a file, never a key: everybody on the host can read a command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use tenure::Keys;

use crate::failure::Failure;

/// The option of every command that signs or verifies.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct KeysArgs {
    /// Keys that sign and verify, one a line [env: TENURE_KEYS_FILE]
    ///
    /// `tenure sequencer key` makes them. The first one signs sequencers, all verify them. TENURE_KEYS is for the keys themselves.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
}

impl KeysArgs {
    /// The keys, if there are any.
    pub(crate) fn read(&self) -> Result<Option<Keys>, Failure> {
        Ok(match &self.keys {
            Some(path) => Some(Keys::from_file(path)?),
            None => Keys::from_env()?,
        })
    }

    /// What a command's own `tenure` calls need to have the same keys: the file's path. Who may read it the file system says.
    pub(crate) fn environment(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        Ok(match &self.keys {
            Some(path) => {
                let path = std::path::absolute(path)?;
                vec![("TENURE_KEYS_FILE".into(), path.into())]
            }
            None => Vec::new(),
        })
    }
}
