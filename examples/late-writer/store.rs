//! The HTTP store: one text, to be read and written at `/report`; with the fence, or without.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use tenure::fence::Gate;
use tenure::http::FenceLayer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Result;

/// A running store; stopped when dropped.
pub struct Store {
    pub address: SocketAddr,
    text: Text,
    serving: JoinHandle<()>,
}

type Text = Arc<Mutex<String>>;

impl Store {
    /// `fence` is the file that the fence is kept in, and the name of the lock that protects the text.
    pub async fn start(fence: Option<(&Path, &str)>) -> Result<Self> {
        let text = Text::default();
        let mut app = Router::new().route("/report", get(read).put(write)).with_state(Arc::clone(&text));
        if let Some((file, lock)) = fence {
            // This is all that it takes.
            let fence = tenure::fence(format!("sqlite://{}", file.display())).await?;
            app = app.layer(FenceLayer::new(Gate::new(fence), lock)?);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.expect("the listener is ours") });
        Ok(Store { address, text, serving })
    }

    pub fn text(&self) -> String {
        self.text.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn read(State(text): State<Text>) -> String {
    text.lock().expect("nobody panics with it").clone()
}

async fn write(State(text): State<Text>, body: String) {
    *text.lock().expect("nobody panics with it") = body;
}
