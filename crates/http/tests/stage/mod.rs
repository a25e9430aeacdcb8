//! An axum server on a port of its own with the layer in front, and clients that speak to it over the socket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state, map_response_with_state};
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tenure_core::{Kind, LockName, Mode, Sequencer, Token};
use tenure_http::{FenceLayer, Problem, Refused};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A sequencer as a holder of a mutex would send it.
pub(crate) fn sequencer(name: &str, token: u64) -> Sequencer {
    Sequencer::new(LockName::new(name).unwrap(), Kind::Mutex, Mode::Exclusive, Token::new(token), 0)
}

/// What is behind the layer: it keeps every body that it has handled.
pub(crate) struct App {
    handled: Mutex<Vec<String>>,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    /// How many requests the server has not answered or dropped.
    under_way: AtomicUsize,
    /// Handling goes on when there is a permit.
    go_on: Semaphore,
    refusals: Mutex<Vec<(Problem, String)>>,
}

impl App {
    fn new(permits: usize) -> Self {
        App {
            handled: Mutex::default(),
            inside: AtomicUsize::new(0),
            most_inside: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            go_on: Semaphore::new(permits),
            refusals: Mutex::default(),
        }
    }

    /// One that handles nothing to its end until it is [opened](Stage::open).
    pub(crate) fn slow() -> Self {
        App::new(0)
    }

    async fn handle(State(app): State<Arc<App>>, request: Request) -> Body {
        let inside = Inside::new(Arc::clone(&app));
        let sequencer = request.extensions().get::<Sequencer>().cloned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        if body == IN_THE_BODY {
            return Body::new(Later(Some(Box::pin(inside.write(body)))));
        }
        inside.write(body).await;
        match sequencer {
            Some(Sequencer { token, .. }) => format!("handled, with {token}").into(),
            None => "handled, without a sequencer".into(),
        }
    }

    /// Sees requests come and go, outside of the layer.
    async fn count(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
        struct Done(Arc<App>);
        impl Drop for Done {
            fn drop(&mut self) {
                self.0.under_way.fetch_sub(1, Ordering::SeqCst);
            }
        }
        app.under_way.fetch_add(1, Ordering::SeqCst);
        let _done = Done(app);
        next.run(request).await
    }

    /// What a server's log would have.
    async fn log(State(app): State<Arc<App>>, response: Response) -> Response {
        if let Some(refused) = response.extensions().get::<Refused>() {
            app.refusals.lock().unwrap().push((refused.problem(), refused.error().to_string()));
        }
        response
    }
}

/// What a request sends whose handling goes on while the response's body is sent.
pub(crate) const IN_THE_BODY: &str = "in the body";

/// Somebody at work in the app.
struct Inside(Arc<App>);

impl Inside {
    fn new(app: Arc<App>) -> Self {
        let inside = app.inside.fetch_add(1, Ordering::SeqCst) + 1;
        app.most_inside.fetch_max(inside, Ordering::SeqCst);
        Inside(app)
    }

    async fn write(self, text: String) -> Bytes {
        drop(self.0.go_on.acquire().await.unwrap());
        self.0.handled.lock().unwrap().push(text.clone());
        Bytes::from(text)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of one piece that is made while it is sent.
struct Later(Option<Pin<Box<dyn Future<Output = Bytes> + Send>>>);

impl http_body::Body for Later {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(making) = &mut self.0 else { return Poll::Ready(None) };
        let made = ready!(making.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(made))))
    }
}

/// The server; stopped when dropped.
pub(crate) struct Stage {
    app: Arc<App>,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Stage {
    pub(crate) async fn new(layer: FenceLayer) -> Self {
        Self::with(App::new(Semaphore::MAX_PERMITS / 2), layer).await
    }

    pub(crate) async fn with(app: App, layer: FenceLayer) -> Self {
        let app = Arc::new(app);
        let router = Router::new()
            .fallback(App::handle)
            .layer(layer)
            .layer(map_response_with_state(Arc::clone(&app), App::log))
            .layer(from_fn_with_state(Arc::clone(&app), App::count))
            .with_state(Arc::clone(&app));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Stage { app, address, server }
    }

    pub(crate) fn handled(&self) -> Vec<String> {
        self.app.handled.lock().unwrap().clone()
    }

    pub(crate) fn inside(&self) -> usize {
        self.app.inside.load(Ordering::SeqCst)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.app.under_way.load(Ordering::SeqCst)
    }

    pub(crate) fn most_inside(&self) -> usize {
        self.app.most_inside.load(Ordering::SeqCst)
    }

    pub(crate) fn refusals(&self) -> Vec<(Problem, String)> {
        self.app.refusals.lock().unwrap().clone()
    }

    /// Lets a slow app handle all it has and gets.
    pub(crate) fn open(&self) {
        self.app.go_on.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub(crate) async fn put(&self, body: &str, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) -> Answer {
        self.send(Method::PUT, "/", headers, body).await
    }

    pub(crate) fn spawn_put(&self, body: &'static str, header: (HeaderName, HeaderValue)) -> JoinHandle<Answer> {
        tokio::spawn(send(self.address, request(Method::PUT, "/", [header], body)))
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: &str,
    ) -> Answer {
        send(self.address, request(method, path, headers, body)).await
    }

    pub(crate) async fn send_http2(
        &self,
        path: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: &str,
    ) -> Answer {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let driver = tokio::spawn(connection);
        let request = request(Method::POST, &format!("http://{}{path}", self.address), headers, body);
        let answer = Answer::read(sender.send_request(request).await.unwrap()).await;
        driver.abort();
        answer
    }
}

fn request(
    method: Method,
    path: &str,
    headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    body: &str,
) -> http::Request<Full<Bytes>> {
    let mut request = http::Request::builder().method(method).uri(path).header("host", "store.example");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(Full::from(body.to_owned())).unwrap()
}

/// One request on a connection of its own, which ends when this is dropped.
async fn send(address: SocketAddr, request: http::Request<Full<Bytes>>) -> Answer {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    let exchange = async { Answer::read(sender.send_request(request).await.unwrap()).await };
    tokio::pin!(connection);
    tokio::select! {
        answer = exchange => answer,
        ended = &mut connection => panic!("the connection ended before the answer: {ended:?}"),
    }
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: String,
}

impl Answer {
    async fn read(response: http::Response<Incoming>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    }

    pub(crate) fn text(&self) -> String {
        self.body.clone()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// Which problem it is: what its type ends with.
    pub(crate) fn problem(&self) -> String {
        let problem = self.json();
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], self.status.as_u16());
        problem["type"].as_str().unwrap().rsplit('#').next().unwrap().to_owned()
    }
}
