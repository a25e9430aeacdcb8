//! A second process that shows tokens to the fence, and tells of each what was said. It is the test binary itself, started again with
//! only the `racer` test to run.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_core::backend::BoxFuture;
use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{Instant, LockName, Result, Token};
use tokio::sync::mpsc;

use super::order::{Said, Shown};
use crate::{Rng, in_time};

/// The variable that makes the `racer` test a racer: where the fence is, and what is to be shown.
const RACER: &str = "TENURE_RACER";
/// What a line of its begins with, among those of the test runner.
const MARK: &str = "@racer ";

/// What a racer shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Of which name.
    pub(crate) name: String,
    /// Which random numbers.
    pub(crate) seed: u64,
    /// How many tokens; 0 is without end.
    pub(crate) rounds: u64,
    /// How far tokens may be from their order: 0 is rising ones only.
    pub(crate) disorder: u64,
    /// Where they begin.
    pub(crate) from: u64,
}

impl Plan {
    /// Shows them, and hands on what was said to each.
    pub(crate) async fn run(&self, fence: &dyn Fence, mut tell: impl FnMut(Shown)) {
        let name = LockName::new(&self.name).expect("a good name");
        let mut rng = Rng::new(self.seed);
        for round in 1.. {
            if self.rounds > 0 && round > self.rounds {
                return;
            }
            let token = self.from + round * 3 + rng.below(self.disorder + 1);
            tell(show(fence, &name, token).await);
        }
    }
}

/// Shows one token. An error is an unknown.
pub(crate) async fn show(fence: &dyn Fence, name: &LockName, token: u64) -> Shown {
    let start = Instant::now().as_nanos();
    let said = match fence.advance(name, Token::new(token), Rule::ANY).await {
        Ok(Verdict::Accepted) => Said::Accepted,
        Ok(Verdict::Stale { highest }) => Said::Stale(highest.get()),
        Ok(other) => panic!("nothing is implausible here: {other:?}"),
        Err(error) if error.is_transient() => Said::Unknown,
        Err(error) => panic!("{error}"),
    };
    let end = Instant::now().as_nanos();
    tokio::task::yield_now().await; // some fences never wait, and others want to run too
    Shown { start, end, token, said }
}

/// Its handle. Killed when dropped.
pub(crate) struct Racer {
    child: Child,
    told: mpsc::UnboundedReceiver<Shown>,
}

#[derive(Serialize, Deserialize)]
struct Orders {
    url: String,
    plan: Plan,
}

impl Racer {
    pub(crate) fn start(test: &str, url: &str, plan: &Plan) -> Self {
        // `fences::file::racer` is `file::racer` to the test runner.
        let test = test.split_once("::").map_or(test, |(_, test)| test);
        let orders = Orders { url: url.to_owned(), plan: plan.clone() };
        let mut child = Command::new(std::env::current_exe().expect("the test binary knows where it is"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(RACER, serde_json::to_string(&orders).expect("orders are plain"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can be started again");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, told) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            // A line that was cut off by a kill is no JSON, and was told to nobody.
            let lines = output.lines().map_while(std::result::Result::ok);
            for line in lines.filter_map(|line| serde_json::from_str(line.strip_prefix(MARK)?).ok()) {
                let _ = tell.send(line);
            }
        });
        Racer { child, told }
    }

    /// The next answer it got; `None` at its end.
    pub(crate) async fn next(&mut self) -> Option<Shown> {
        in_time("a racer goes on, or ends", self.told.recv()).await
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// All that it still has to say, until its end.
    pub(crate) async fn rest(&mut self) -> Vec<Shown> {
        let mut all = Vec::new();
        while let Some(shown) = self.next().await {
            all.push(shown);
        }
        all
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What the `racer` test does: nothing, unless it was started to be one.
pub(crate) fn serve(open: impl Fn(&str) -> BoxFuture<'_, Result<Arc<dyn Fence>>>) {
    let Ok(orders) = std::env::var(RACER) else { return };
    let Orders { url, plan } = serde_json::from_str(&orders).expect("orders are plain");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        let fence = open(&url).await.expect("the fence can be opened");
        let tell = |shown: Shown| {
            let line = format!("\n{MARK}{}\n", serde_json::to_string(&shown).expect("it is plain"));
            let mut out = std::io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("somebody listens");
        };
        plan.run(&*fence, tell).await;
    });
    std::process::exit(0);
}
