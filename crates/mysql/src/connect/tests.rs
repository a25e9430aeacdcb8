//! Repaired procedures, and the databases that have those before them.

use tenure_core::backend::{Finding, Level};
use tenure_core::{Client, Environment};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

use super::*;
use crate::schema::{RELEASE_ROW, TEXT_ROW, stamp_of_text};

/// What `doctor` says of the procedures to a client that has just come.
async fn says(url: &str) -> Finding {
    let client = Client::with_environment(connect(&url.parse().unwrap()).await.unwrap(), Environment::real()).unwrap();
    let findings = client.examine().await.unwrap();
    findings.into_iter().find(|finding| finding.what == "functions").expect("they are looked at")
}

/// A repaired procedure reaches a database that has the one before it, unless somebody else has made that, or a newer release.
#[tokio::test]
async fn repaired_procedures_replace_those_that_are_there() {
    let server = MariaDb::start(MariaDbOptions::new());
    let url = server.url();
    let Stamp { release, text } = stamp_of_text();
    let stamp = |release: u32, text: u32, definer: &str| {
        server.sql(&format!(
            "CREATE OR REPLACE DEFINER = {definer} PROCEDURE tenure_unfold(IN p_name VARBINARY(512)) SELECT 'stale'; \
             UPDATE tenure_setup SET version = {release} WHERE id = {RELEASE_ROW}; \
             UPDATE tenure_setup SET version = {text} WHERE id = {TEXT_ROW}"
        ))
    };
    let is_repaired = || {
        let body =
            "SELECT ROUTINE_DEFINITION LIKE '%stale%' FROM information_schema.ROUTINES WHERE ROUTINE_NAME = 'tenure_unfold'";
        server.sql(body) == [["0"]]
    };
    let stamped = || server.sql(&format!("SELECT version FROM tenure_setup WHERE id >= {RELEASE_ROW} ORDER BY id"));
    assert_eq!(says(&url).await.level, Level::Good);
    let definer = "SELECT DEFINER FROM information_schema.ROUTINES WHERE ROUTINE_NAME = 'tenure_unfold'";
    let ours = server.sql(definer)[0][0].split('@').map(|part| format!("'{part}'")).collect::<Vec<_>>().join("@");
    for older in [release, 0] {
        stamp(older, text ^ 1, &ours);
        assert_eq!(says(&url).await.level, Level::Good);
        assert!(is_repaired(), "{older}");
        assert_eq!(stamped(), [[release.to_string()], [text.to_string()]]);
    }
    server.sql(&format!("DELETE FROM tenure_setup WHERE id = {TEXT_ROW}"));
    assert_eq!(says(&url).await.level, Level::Good, "they had no stamp");
    assert_eq!(stamped(), [[release.to_string()], [text.to_string()]]);
    stamp(release + 1, text ^ 1, &ours);
    let newer = says(&url).await;
    assert!(newer.level == Level::Good && newer.says.contains("newer"), "{newer:?}");
    assert!(!is_repaired(), "an older program does not take a repair back");
    // Somebody else's are left alone, also by somebody who may replace them.
    stamp(release, text ^ 1, "'stranger'@'%'");
    let strange = says(&url).await;
    assert!(strange.level == Level::Warning && strange.says.contains("tenure migrate"), "{strange:?}");
    assert!(!is_repaired());
    // And whoever may not replace them uses what is there.
    stamp(release, text ^ 1, &ours);
    server.sql("CREATE USER app@127.0.0.1; GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON tenure.* TO app@127.0.0.1");
    assert_eq!(says(&server.url_as("app", "", "tenure")).await.level, Level::Warning);
    assert!(!is_repaired());
}
