//! What a request must never hide.

use tenure_testkit::servers::mariadb::MariaDb;

use super::*;
use crate::error::code;

async fn conn() -> Conn {
    let settings = Settings::from_url(&MariaDb::shared().url().parse().unwrap()).unwrap();
    Conn::new(settings.options().unwrap()).await.unwrap()
}

#[tokio::test]
async fn an_error_in_a_later_result_is_an_error() {
    let mut conn = conn().await;
    for text in
        ["SELECT 1; SELECT * FROM nowhere", "DO 1; SELECT * FROM nowhere; DO 1", "SELECT 1; SELECT 2; SELECT * FROM nowhere"]
    {
        let failure = read_all(&mut conn, text).await.expect_err(text);
        assert_eq!(code(&failure), Some(1146), "{text}: {failure}");
        assert_eq!(read_all(&mut conn, "SELECT 7").await.unwrap().len(), 1, "and the connection goes on");
    }
    let sets = read_all(&mut conn, "DO 1; SELECT 1; DO 2; SELECT 2, 3 UNION SELECT 4, 5").await.unwrap();
    assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2], "only what has columns");
}
