//! Asking the sentinels who is master.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use redis::{RedisResult, Value};
use tenure_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use crate::cluster::{gather, nobody};
use tenure_core::Address;

use crate::config::{Settings, Topology};
use crate::error::explain_connect;

/// Where the master is, as a majority of the sentinels in the URL says: all are asked at once. One alone is not believed,
/// since what it names is shown the servers' login; and one that was cut off does not know of a failover. Whether it really is a
/// master the caller must still find out from the server itself.
///
/// # Cancel safety
/// It only reads; dropped, its connections are closed.
pub(crate) async fn master(settings: &Settings) -> Result<Address> {
    let Topology::Sentinel { sentinels, service } = &settings.topology else {
        return Err(Error::new(ErrorKind::BadUrl, "this store has no sentinels"));
    };
    let sentinels: BTreeSet<&Address> = sentinels.iter().collect(); // one that is named twice has one voice
    let majority = sentinels.len() / 2 + 1;
    let shared = Arc::new(settings.clone());
    let mut asked = JoinSet::new();
    for sentinel in &sentinels {
        let (settings, sentinel, service) = (Arc::clone(&shared), Address::clone(sentinel), service.clone());
        asked.spawn(async move { ask(&settings, &sentinel, &service).await });
    }
    let (answers, faults) = gather(asked, |answers| agreed(answers, majority).is_some()).await;
    if answers.is_empty() {
        return Err(nobody("no sentinel could be asked", settings, faults));
    }
    match agreed(&answers, majority) {
        Some(master) => Ok(master),
        None if answers.iter().all(|said| said.master.is_none()) => {
            Err(unknown_service(service, &answers).with_store(settings.describe()))
        }
        None => Err(disagreed(sentinels.len(), majority, &answers, &faults).with_store(settings.describe())),
    }
}

/// What one sentinel says.
#[derive(Debug)]
struct Said {
    master: Option<Address>,
    /// The services it knows, where it was asked.
    services: Vec<String>,
}

/// How many sentinels name each master.
fn voices(answers: &[Said]) -> BTreeMap<&Address, usize> {
    let mut voices = BTreeMap::new();
    for master in answers.iter().filter_map(|said| said.master.as_ref()) {
        *voices.entry(master).or_insert(0) += 1;
    }
    voices
}

/// The master that at least so many name.
fn agreed(answers: &[Said], majority: usize) -> Option<Address> {
    voices(answers).into_iter().find(|(_, voices)| *voices >= majority).map(|(master, _)| master.clone())
}

fn disagreed(sentinels: usize, majority: usize, answers: &[Said], faults: &[Error]) -> Error {
    let named = voices(answers).into_iter().map(|(master, voices)| format!("{voices} named {master}"));
    let said: Vec<String> = named.chain(faults.iter().map(Error::to_string)).collect();
    let what = format!("{majority} of {sentinels} sentinels must name the same master ({})", said.join("; "));
    Error::new(ErrorKind::Unavailable, what).with_hint(
        "The URL should have all sentinels. One that names another master than the rest was cut off, or is not to be trusted",
    )
}

fn unknown_service(service: &str, answers: &[Said]) -> Error {
    let mut known: Vec<&str> = answers.iter().flat_map(|said| &said.services).map(String::as_str).collect();
    known.sort_unstable();
    known.dedup();
    let hint = match known.as_slice() {
        [] => {
            "It is the name in the sentinels' line `sentinel monitor NAME …`, and stands last in the URL's path".to_owned()
        }
        known => format!("They know {}; the name stands in the URL's path", known.join(", ")),
    };
    Error::new(ErrorKind::Backend, format!("the sentinels know no master {service:?}")).with_hint(hint)
}

async fn ask(settings: &Settings, at: &Address, service: &str) -> Result<Said> {
    let failed = |error: redis::RedisError| {
        let refused = matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
            || error.kind() == redis::ErrorKind::AuthenticationFailed;
        let no_sentinel = error.detail().is_some_and(|text| text.starts_with("unknown command"));
        let error = Error::from(explain_connect(error, at, settings));
        match (refused, no_sentinel) {
            (true, _) => {
                error.with_hint("Sentinels have logins of their own: sentinel_user=NAME and sentinel_password=TEXT")
            }
            (_, true) => {
                Error::new(ErrorKind::Backend, format!("{at} is no sentinel")).with_store(settings.describe()).with_hint(
                    "The hosts of a redis+sentinel:// URL are the sentinels', mostly on port 26379, not the servers'",
                )
            }
            _ => error,
        }
    };
    let client = settings.sentinel_client(at)?;
    let asking = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings.connection(at)).await?;
        let mut where_is = redis::cmd("SENTINEL");
        where_is.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let place = connection.send_packed_command(&where_is).await;
        let master = address(&place.and_then(Value::extract_error)?);
        let services = match &master {
            Some(_) => Vec::new(),
            None => services(connection.send_packed_command(redis::cmd("SENTINEL").arg("MASTERS")).await),
        };
        RedisResult::Ok(Said { master, services })
    };
    match tokio::time::timeout(settings.connect_limit, asking).await {
        Ok(said) => said.map_err(failed),
        Err(_) => Err(failed(std::io::Error::from(std::io::ErrorKind::TimedOut).into())),
    }
}

fn address(answer: &Value) -> Option<Address> {
    let [host, port]: [String; 2] = redis::from_redis_value_ref::<Vec<String>>(answer).ok()?.try_into().ok()?;
    Some(Address::new(host, port.parse().ok()?))
}

fn services(answer: RedisResult<Value>) -> Vec<String> {
    let Ok(Value::Array(masters)) = answer else { return Vec::new() };
    masters.iter().filter_map(|master| field(master, "name")).collect()
}

/// A field of what a sentinel tells about a master: names and values in turn.
fn field(about: &Value, name: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = redis::from_redis_value_ref(about).ok()?;
    pairs.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests;
