//! The suite every store must pass, over a fresh file for each case.

use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::{Backend, Result};
use tenure_sqlite::{Settings, Sqlite};
use tenure_testkit::Harness;

struct SqliteHarness {
    directory: TempDir,
    /// Never asks for anything: it only counts.
    onlooker: Sqlite,
}

impl SqliteHarness {
    fn open(&self) -> Sqlite {
        Sqlite::open(self.directory.path().join("locks.db"), Settings::default()).expect("a new file can be made")
    }
}

impl Harness for SqliteHarness {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let onlooker = Sqlite::open(directory.path().join("locks.db"), Settings::default()).expect("a new file can be made");
        SqliteHarness { directory, onlooker }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.open())
    }

    async fn residue(&self) -> usize {
        self.onlooker.residue().expect("the file can be read")
    }

    fn url(&self) -> Option<String> {
        Some(format!("sqlite://{}", self.directory.path().join("locks.db").display()))
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(tenure_sqlite::connect(&url.parse()?)?))
    }
}

tenure_testkit::conformance!(sqlite => SqliteHarness);
