//! The store it runs on: the one that was named, or a temporary SQLite file that is gone afterwards.

use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use tenure::{Error, ErrorKind, Result};

use super::failed;

/// Where to measure.
pub(super) struct Place {
    url: String,
    /// Removed with everything in it when this is dropped.
    directory: Option<PathBuf>,
}

impl Place {
    pub(super) fn choose(store: Option<String>) -> Result<Self> {
        match store {
            Some(url) => Ok(Place { url, directory: None }),
            None => Self::temporary(),
        }
    }

    /// Never the user's default file: a benchmark has no business between a user's locks.
    fn temporary() -> Result<Self> {
        if !tenure::SCHEMES.contains(&"sqlite") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "bench: this build has no embedded store to make a temporary one of",
            )
            .with_hint("Name a store with --store URL"));
        }
        let directory = std::env::temp_dir().join(format!("tenure-bench-{:016x}", random()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|error| failed(&format!("making the directory {}", directory.display()), error))?;
        Ok(Place { url: format!("sqlite://{}/locks.db", directory.display()), directory: Some(directory) })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn is_temporary(&self) -> bool {
        self.directory.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = std::fs::remove_dir_all(directory); // what cannot be removed is in the system's temporary directory
        }
    }
}

/// A number nobody else has: the keys of hash maps are drawn from the kernel.
pub(super) fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_place_is_gone_afterwards() {
        let place = match Place::choose(None) {
            Ok(place) => place,
            Err(error) => return assert!(!tenure::SCHEMES.contains(&"sqlite"), "{error}"),
        };
        let directory = place.directory.clone().unwrap();
        assert!(directory.is_dir() && place.is_temporary());
        drop(place);
        assert!(!directory.exists());
    }

    #[test]
    fn a_named_one_is_left_alone() {
        let place = Place::choose(Some("memory://".to_owned())).unwrap();
        assert!(!place.is_temporary());
        assert_eq!(place.url(), "memory://");
    }
}
