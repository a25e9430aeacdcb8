//! The layer in front of a real server on a real socket, and real clients: what each of them is told, and what is handled.

mod stage;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use stage::{App, IN_THE_BODY, Stage, sequencer};
use tenure_core::backend::async_trait;
use tenure_core::fence::{Fence, Gate, MemoryFence, Rule, Verdict};
use tenure_core::memory::Memory;
use tenure_core::{Client, Error, ErrorKind, Keys, LockName, Result, Sequencer, Token};
use tenure_http::{FenceLayer, Problem, header, header_of};
use tenure_testkit::{eventually, in_time};

fn gate() -> Gate {
    Gate::new(Arc::new(MemoryFence::new()))
}

fn layer() -> FenceLayer {
    FenceLayer::new(gate(), "invoices").unwrap()
}

#[tokio::test]
async fn a_late_write_is_refused_and_says_why() {
    let stage = Stage::new(layer()).await;
    let client = Client::new(Memory::new().backend()).unwrap();
    let lock = client.mutex("invoices").unwrap();
    let first = lock.lock().await.unwrap();
    let of_first = header(&first);
    assert_eq!(stage.put("one", [of_first.clone()]).await.status, StatusCode::OK);
    let highest = first.token();
    first.release().await.unwrap();
    let second = lock.lock().await.unwrap();
    assert_eq!(stage.put("two", [header(&second)]).await.status, StatusCode::OK);
    assert_eq!(stage.put("two, again", [header(&second)]).await.status, StatusCode::OK);

    let late = stage.put("late", [of_first]).await;
    assert_eq!(late.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(late.headers["content-type"], "application/problem+json");
    let problem = late.json();
    assert_eq!(problem["status"], 412);
    assert_eq!(problem["name"], "invoices");
    assert_eq!(problem["token"], highest.get());
    assert_eq!(problem["highest"], second.token().get());
    assert!(problem["type"].as_str().unwrap().ends_with("#stale"), "{problem}");
    assert!(problem["title"].is_string() && problem["detail"].as_str().unwrap().contains("too late"), "{problem}");
    assert_eq!(stage.handled(), ["one", "two", "two, again"]);
}

#[tokio::test]
async fn reading_needs_no_sequencer_and_writing_does() {
    let stage = Stage::new(layer()).await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        assert!(stage.send(method, "/", [], "").await.status.is_success());
    }
    for method in [Method::PUT, Method::POST, Method::PATCH, Method::DELETE, "PURGE".parse().unwrap()] {
        let refused = stage.send(method, "/", [], "x").await;
        assert_eq!((refused.status, refused.problem()), (StatusCode::PRECONDITION_REQUIRED, "missing".to_owned()));
    }
    assert_eq!(stage.handled(), ["", "", ""]);
}

#[tokio::test]
async fn what_is_checked_can_be_chosen() {
    let stage = Stage::new(layer().methods([Method::GET])).await;
    assert_eq!(stage.send(Method::GET, "/", [], "").await.status, StatusCode::PRECONDITION_REQUIRED);
    assert_eq!(stage.send(Method::PUT, "/", [], "").await.status, StatusCode::OK);

    let stage = Stage::new(layer().optional()).await;
    assert_eq!(stage.put("unfenced", []).await.text(), "handled, without a sequencer");
    assert_eq!(stage.put("fenced", [header_of(&sequencer("invoices", 5))]).await.text(), "handled, with 5");
    assert_eq!(stage.put("late", [header_of(&sequencer("invoices", 4))]).await.status, StatusCode::PRECONDITION_FAILED);
    assert_eq!(stage.put("bad", [(tenure_http::SEQUENCER, "x".parse().unwrap())]).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_not_repeated() {
    let stage = Stage::new(layer()).await;
    let good = sequencer("invoices", 5).to_string();
    let raw = |text: &[u8]| (tenure_http::SEQUENCER, http::HeaderValue::from_bytes(text).unwrap());
    let mut bad: Vec<Vec<u8>> =
        vec![b"".to_vec(), b"17".to_vec(), b"s3cret-in-the-wrong-header".to_vec(), b"\xff\xfe".to_vec()];
    bad.extend((1..good.len() - "invoices".len() + 1).map(|end| good.as_bytes()[..end].to_vec()));
    bad.push(format!("{good}:").into_bytes());
    bad.push(format!(" {good} x").into_bytes());
    for text in bad {
        let refused = stage.put("x", [raw(&text)]).await;
        assert_eq!((refused.status, refused.problem()), (StatusCode::BAD_REQUEST, "malformed".to_owned()), "{text:?}");
        assert!(!refused.text().contains("s3cret"), "{}", refused.text());
    }
    let long = stage.put("x", [raw(&[b'a'; 3000])]).await;
    assert_eq!((long.status, long.problem()), (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "oversized".to_owned()));
    let twice = stage.put("x", [raw(good.as_bytes()), raw(good.as_bytes())]).await;
    assert_eq!((twice.status, twice.problem()), (StatusCode::BAD_REQUEST, "malformed".to_owned()));
    assert!(stage.handled().is_empty());

    // The longest there is is not too long.
    let name = "\u{10FFFF}".repeat(LockName::MAX_BYTES / 4);
    let stage = Stage::new(FenceLayer::new(gate().keys(keys()), &name).unwrap()).await;
    let longest = sequencer(&name, i64::MAX as u64).signed_with(&keys());
    assert_eq!(stage.put("x", [header_of(&longest)]).await.status, StatusCode::OK);
}

fn keys() -> Keys {
    Keys::parse(&format!("{}:{}", "k".repeat(32), "5e".repeat(32))).unwrap()
}

#[tokio::test]
async fn what_was_not_signed_here_is_refused_whatever_its_token() {
    let stage = Stage::new(FenceLayer::new(gate().keys(keys()), "invoices").unwrap()).await;
    let signed = sequencer("invoices", 5).signed_with(&keys());
    let changed = Sequencer { token: Token::new(i64::MAX as u64), ..signed.clone() };
    let stranger = sequencer("invoices", 9).signed_with(&Keys::generate("stranger").unwrap());
    for forged in [sequencer("invoices", i64::MAX as u64), changed, stranger] {
        let refused = stage.put("forged", [header_of(&forged)]).await;
        assert_eq!((refused.status, refused.problem()), (StatusCode::FORBIDDEN, "forged".to_owned()));
        assert!(!refused.text().contains(&"5e".repeat(32)) && !refused.text().contains("kkk"), "{}", refused.text());
    }
    assert_eq!(stage.put("signed", [header_of(&signed)]).await.status, StatusCode::OK);
    assert_eq!(stage.handled(), ["signed"]);
}

#[tokio::test]
async fn a_token_too_high_to_be_true_changes_nothing() {
    let gate = gate().rule(Rule::max_ahead(Duration::from_secs(60)));
    let stage = Stage::new(FenceLayer::new(gate, "invoices").unwrap()).await;
    assert_eq!(stage.put("x", [header_of(&sequencer("invoices", 5))]).await.status, StatusCode::OK);
    let refused = stage.put("x", [header_of(&sequencer("invoices", i64::MAX as u64))]).await;
    assert_eq!((refused.status, refused.problem()), (StatusCode::FORBIDDEN, "implausible".to_owned()));
    assert_eq!(refused.json()["highest"], 5);
    assert_eq!(stage.put("x", [header_of(&sequencer("invoices", 6))]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn each_thing_has_its_lock() {
    let layer = FenceLayer::named_by(gate(), |request| {
        let id: u64 = request.uri.path().strip_prefix("/invoices/")?.parse().ok()?;
        Some(format!("invoices/{id}"))
    });
    let stage = Stage::new(layer).await;
    let put = async |path: &str, name: &str, token| {
        let sent = stage.send(Method::PUT, path, [header_of(&sequencer(name, token))], path).await;
        (sent.status, if sent.status.is_success() { "".to_owned() } else { sent.problem() })
    };
    let (good, elsewhere) = ((StatusCode::OK, "".to_owned()), (StatusCode::FORBIDDEN, "elsewhere".to_owned()));
    assert_eq!(put("/invoices/7", "invoices/7", 50).await, good);
    assert_eq!(put("/invoices/8", "invoices/8", 5).await, good, "another one has another highest");
    assert_eq!(put("/invoices/7", "invoices/8", 60).await, elsewhere, "a holder of another lock");
    assert_eq!(put("/invoices/007", "invoices/7", 49).await.0, StatusCode::PRECONDITION_FAILED, "the same by another path");
    assert_eq!(put("/invoices/%37", "invoices/%37", 60).await, elsewhere, "no name, no entry");
    assert_eq!(put("/", "invoices/7", 60).await, elsewhere);
}

#[tokio::test]
async fn readers_do_not_write() {
    let shared = |token: u64| -> Sequencer { format!("tenure1:rw-lock:shared:{token}:0:invoices").parse().unwrap() };
    let permit: Sequencer = "tenure1:semaphore:1/3:9:0:invoices".parse().unwrap();
    let stage = Stage::new(layer().methods([Method::GET, Method::PUT])).await;
    assert_eq!(stage.put("x", [header_of(&sequencer("invoices", 5))]).await.status, StatusCode::OK);
    assert_eq!(stage.send(Method::GET, "/", [header_of(&shared(6))], "").await.status, StatusCode::OK);
    assert_eq!(stage.send(Method::GET, "/", [header_of(&shared(4))], "").await.status, StatusCode::PRECONDITION_FAILED);
    for reader in [shared(6), permit] {
        let refused = stage.put("x", [header_of(&reader)]).await;
        assert_eq!((refused.status, refused.problem()), (StatusCode::FORBIDDEN, "reader".to_owned()));
    }
    let stage = Stage::new(layer().readers_write()).await;
    assert_eq!(stage.put("x", [header_of(&shared(6))]).await.status, StatusCode::OK);
}

/// A request that is being handled when the next holder's comes: the next one waits, and is not overtaken.
#[tokio::test]
async fn nothing_comes_between_the_check_and_the_write() {
    let stage = Stage::with(App::slow(), layer()).await;
    let early = stage.spawn_put("early", header_of(&sequencer("invoices", 1)));
    eventually("the early one is let in", || stage.inside() == 1).await;
    let late = stage.spawn_put("next", header_of(&sequencer("invoices", 2)));
    stage.open();
    assert_eq!(early.await.unwrap().status, StatusCode::OK);
    assert_eq!(late.await.unwrap().status, StatusCode::OK);
    assert_eq!(stage.handled(), ["early", "next"]);
    assert_eq!(stage.most_inside(), 1);
}

/// A holder that stands still in the middle of its request does not keep the others out for ever, and theirs are not begun.
#[tokio::test]
async fn a_turn_that_does_not_come_is_an_answer() {
    let stage = Stage::with(App::slow(), layer().patience(Duration::from_millis(100))).await;
    let early = stage.spawn_put("early", header_of(&sequencer("invoices", 1)));
    eventually("the early one is let in", || stage.inside() == 1).await;
    let refused = stage.put("next", [header_of(&sequencer("invoices", 2))]).await;
    assert_eq!((refused.status, refused.problem()), (StatusCode::SERVICE_UNAVAILABLE, "busy".to_owned()));
    assert_eq!(refused.headers["retry-after"], "1");
    stage.open();
    assert_eq!(early.await.unwrap().status, StatusCode::OK, "what has begun is not ended by the layer's clock");
    assert_eq!(stage.put("next", [header_of(&sequencer("invoices", 2))]).await.status, StatusCode::OK);
}

/// A client that goes away in the middle of its request does not end what was begun, and nobody overtakes that.
#[tokio::test]
async fn what_a_client_that_goes_away_has_begun_is_not_overtaken() {
    let stage = Stage::with(App::slow(), layer()).await;
    let early = stage.spawn_put("early", header_of(&sequencer("invoices", 1)));
    eventually("the early one is let in", || stage.inside() == 1).await;
    early.abort();
    eventually("the server has noticed", || stage.under_way() == 0).await;
    let next = stage.spawn_put("next", header_of(&sequencer("invoices", 2)));
    eventually("the next one is there", || stage.under_way() == 1).await;
    stage.open();
    assert_eq!(next.await.unwrap().status, StatusCode::OK);
    assert_eq!(stage.handled(), ["early", "next"]);
    assert_eq!(stage.most_inside(), 1);
}

/// A response whose body is still being made and sent is not overtaken either.
#[tokio::test]
async fn the_turn_lasts_until_the_body_ends() {
    let stage = Stage::with(App::slow(), layer().patience(Duration::from_millis(100))).await;
    let early = stage.spawn_put(IN_THE_BODY, header_of(&sequencer("invoices", 1)));
    eventually("its body is begun", || stage.inside() == 1).await;
    let next = stage.put("next", [header_of(&sequencer("invoices", 2))]);
    let refused = in_time("the next one is answered", next).await;
    assert_eq!((refused.status, refused.problem()), (StatusCode::SERVICE_UNAVAILABLE, "busy".to_owned()));
    stage.open();
    assert_eq!(early.await.unwrap().text(), IN_THE_BODY);
    assert_eq!(stage.put("next", [header_of(&sequencer("invoices", 2))]).await.status, StatusCode::OK);
    assert_eq!(stage.handled(), [IN_THE_BODY, "next"]);
    assert_eq!(stage.most_inside(), 1);
}

/// A body that its client does not wait for is dropped, and the turn with it.
#[tokio::test]
async fn a_body_that_is_dropped_leaves_its_turn() {
    let stage = Stage::with(App::slow(), layer()).await;
    let early = stage.spawn_put(IN_THE_BODY, header_of(&sequencer("invoices", 1)));
    eventually("its body is begun", || stage.inside() == 1).await;
    early.abort();
    eventually("the body is dropped", || stage.inside() == 0).await;
    stage.open();
    assert_eq!(stage.put("next", [header_of(&sequencer("invoices", 2))]).await.status, StatusCode::OK);
    assert_eq!(stage.handled(), ["next"]);
}

/// Whoever made its sequencer up does not stand in line with the others.
#[tokio::test]
async fn what_was_not_signed_here_waits_for_no_turn() {
    let layer = FenceLayer::new(gate().keys(keys()), "invoices").unwrap();
    let stage = Stage::with(App::slow(), layer).await;
    let early = stage.spawn_put("early", header_of(&sequencer("invoices", 1).signed_with(&keys())));
    eventually("the early one is let in", || stage.inside() == 1).await;
    let forged = stage.put("forged", [header_of(&sequencer("invoices", 2))]).await;
    assert_eq!((forged.status, forged.problem()), (StatusCode::FORBIDDEN, "forged".to_owned()));
    stage.open();
    assert_eq!(early.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn with_at_once_they_are_handled_side_by_side() {
    let stage = Stage::with(App::slow(), layer().at_once()).await;
    let early = stage.spawn_put("early", header_of(&sequencer("invoices", 1)));
    let late = stage.spawn_put("next", header_of(&sequencer("invoices", 1)));
    eventually("both are let in", || stage.inside() == 2).await;
    stage.open();
    assert!(early.await.unwrap().status.is_success() && late.await.unwrap().status.is_success());
}

/// A fence that is out of order, as only a test can have it at will.
struct Failing(ErrorKind);

#[async_trait]
impl Fence for Failing {
    fn describe(&self) -> String {
        "postgres:db.internal/fences".to_owned()
    }

    async fn advance(&self, _: &LockName, _: Token, _: Rule) -> Result<Verdict> {
        Err(Error::new(self.0, "it is out of order").with_store(self.describe()))
    }

    async fn highest(&self, _: &LockName) -> Result<Option<Token>> {
        std::future::pending().await
    }

    async fn probe(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn without_an_answer_of_the_fence_nothing_is_handled() {
    for (kind, status, problem, grpc) in [
        (ErrorKind::Unavailable, StatusCode::SERVICE_UNAVAILABLE, "unreachable", Problem::Unreachable),
        (ErrorKind::Backend, StatusCode::INTERNAL_SERVER_ERROR, "broken", Problem::Broken),
    ] {
        let layer = FenceLayer::new(Gate::new(Arc::new(Failing(kind))), "invoices").unwrap();
        let stage = Stage::new(layer).await;
        let refused = stage.put("x", [header_of(&sequencer("invoices", 1))]).await;
        assert_eq!((refused.status, refused.problem()), (status, problem.to_owned()));
        assert!(!refused.text().contains("internal/"), "clients need not know where it is: {}", refused.text());
        let logged = stage.refusals();
        assert!(logged.len() == 1 && logged[0].1.contains("postgres:db.internal/fences"), "the log does: {logged:?}");
        assert_eq!(logged[0].0, grpc);
        assert!(stage.handled().is_empty());
    }
}

#[tokio::test]
async fn a_server_that_is_started_again_remembers() {
    let fence = MemoryFence::new(); // stands for one that is kept: what is shown here is that the server keeps nothing beside it
    let open = || Gate::new(Arc::new(fence.clone()));
    let stage = Stage::new(FenceLayer::new(open(), "invoices").unwrap()).await;
    assert_eq!(stage.put("x", [header_of(&sequencer("invoices", 9))]).await.status, StatusCode::OK);
    drop(stage);
    let stage = Stage::new(FenceLayer::new(open(), "invoices").unwrap()).await;
    assert_eq!(stage.put("x", [header_of(&sequencer("invoices", 8))]).await.status, StatusCode::PRECONDITION_FAILED);
}

#[tokio::test]
async fn a_grpc_client_sees_a_status_of_grpc() {
    let stage = Stage::new(layer()).await;
    let call = async |kind: &str, header: Option<Sequencer>| {
        let kind = (http::header::CONTENT_TYPE, kind.parse().unwrap());
        let headers = [kind].into_iter().chain(header.iter().map(header_of));
        stage.send_http2("/invoices.Store/Put", headers, "x").await
    };
    for kind in ["application/grpc", "application/grpc+proto"] {
        assert_eq!(call(kind, Some(sequencer("invoices", 7))).await.text(), "handled, with 7");
        for (shown, code) in [
            (Some(sequencer("invoices", 6)), tonic::Code::FailedPrecondition),
            (None, tonic::Code::InvalidArgument),
            (Some(sequencer("lunch ☕", 9)), tonic::Code::PermissionDenied),
        ] {
            let refused = call(kind, shown).await;
            assert_eq!((refused.status, refused.text().as_str()), (StatusCode::OK, ""), "as gRPC has it");
            let status = tonic::Status::from_header_map(&refused.headers).expect("a status of gRPC");
            assert_eq!(status.code(), code);
            match code {
                tonic::Code::FailedPrecondition => assert!(status.message().contains("has shown 7"), "{status}"),
                tonic::Code::PermissionDenied => assert!(status.message().contains("lunch ☕"), "{status}"),
                _ => assert!(status.message().contains("Tenure-Sequencer"), "{status}"),
            }
        }
    }
    assert_eq!(call("application/grpc-web", None).await.status, StatusCode::PRECONDITION_REQUIRED, "not gRPC's own");
}
