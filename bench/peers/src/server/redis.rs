//! Redis: empty, without persistence, gone when dropped.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure::Instant;

use super::{Calls, Server};

const PATIENCE: Duration = Duration::from_secs(20);

/// The server ends when our end of its standard input is closed, which it also is when we are killed.
const UNTIL_WE_ARE_GONE: &str = r#"redis-server "$@" & server=$!; cat > /dev/null; kill -9 $server"#;

pub(super) struct Redis {
    connection: redis::Connection,
    url: String,
    version: String,
    // Before the directory it runs in.
    _child: Child,
    _directory: TempDir,
}

impl Redis {
    pub(super) fn start() -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| format!("making a directory: {error}"))?;
        let port = free_port().map_err(|error| format!("finding a free port: {error}"))?;
        let child = Command::new("sh")
            .args([
                "-c",
                UNTIL_WE_ARE_GONE,
                "redis-server",
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .args(["--loglevel", "warning", "--dir"])
            .arg(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("starting redis-server: {error}"))?;
        let child = Child(child);
        let url = format!("redis://127.0.0.1:{port}");
        let client = redis::Client::open(url.as_str()).map_err(|error| error.to_string())?;
        let started = Instant::now();
        let mut connection = loop {
            match client.get_connection() {
                Ok(connection) => break connection,
                Err(error) if Instant::now().since(started) > PATIENCE => {
                    return Err(format!("redis-server does not answer: {error}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let info = info(&mut connection, "server")?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown").to_owned();
        Ok(Redis { connection, url, version, _child: child, _directory: directory })
    }
}

impl Server for Redis {
    fn url(&self) -> &str {
        &self.url
    }

    fn what(&self) -> String {
        format!("one Redis {}, loopback, no persistence", self.version)
    }

    /// Commands also from within scripts; subcommands are part of their command.
    fn calls(&mut self) -> Result<Calls, String> {
        let mut calls = parse_calls(&info(&mut self.connection, "commandstats")?);
        calls.remove("info"); // our own questions
        Ok(calls)
    }

    fn clear(&mut self) -> Result<(), String> {
        redis::cmd("FLUSHALL").exec(&mut self.connection).map_err(|error| format!("FLUSHALL: {error}"))
    }
}

struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn info(connection: &mut redis::Connection, section: &str) -> Result<String, String> {
    redis::cmd("INFO").arg(section).query(connection).map_err(|error| format!("INFO {section}: {error}"))
}

fn parse_calls(info: &str) -> Calls {
    let mut calls = Calls::new();
    for line in info.lines() {
        let Some((command, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) else {
            continue;
        };
        let command = command.split('|').next().unwrap_or(command);
        let count = rest.split(',').next().and_then(|count| count.parse().ok()).unwrap_or(0);
        *calls.entry(command.to_owned()).or_insert(0) += count;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_and_subcommands_summed() {
        let calls = parse_calls(
            "# Commandstats\r\ncmdstat_set:calls=12,usec=9\r\ncmdstat_client|setinfo:calls=2,usec=1\r\ncmdstat_client|id:calls=1,usec=1\r\n",
        );
        assert_eq!(calls, Calls::from([("set".to_owned(), 12), ("client".to_owned(), 3)]));
    }
}
