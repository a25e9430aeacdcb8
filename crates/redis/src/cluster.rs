//! Which node of a cluster has which slot.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};
use tenure_core::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use tenure_core::Address;

use crate::config::Settings;
use crate::error::explain_connect;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// Which master has which slot, as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    /// First slot, last slot, and who has them; sorted, without overlaps.
    ranges: Vec<(u16, u16, Address)>,
}

impl SlotMap {
    /// The master of a slot, if it has one.
    pub(crate) fn node_of(&self, slot: u16) -> Option<&Address> {
        let place = self.ranges.partition_point(|(_, last, _)| *last < slot);
        self.ranges.get(place).filter(|(first, ..)| *first <= slot).map(|(.., node)| node)
    }

    /// All masters, each once.
    #[cfg(test)]
    fn nodes(&self) -> Vec<&Address> {
        let mut nodes: Vec<&Address> = self.ranges.iter().map(|(.., node)| node).collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// How many slots have a master.
    pub(crate) fn covered(&self) -> u32 {
        self.ranges.iter().map(|(first, last, _)| u32::from(last - first) + 1).sum()
    }

    /// Reads what `CLUSTER SLOTS` answers; `at` is the node that was asked. What cannot be read is left out: a slot without a
    /// master is found out soon enough.
    fn parse(answer: &Value, at: &Address) -> SlotMap {
        let Value::Array(entries) = answer else { return SlotMap::default() };
        let mut ranges: Vec<(u16, u16, Address)> = entries
            .iter()
            .filter_map(|entry| {
                let Value::Array(entry) = entry else { return None };
                let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = entry.as_slice() else { return None };
                let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
                (first <= last && last < SLOTS).then_some(())?;
                Some((first, last, endpoint(master, at)?))
            })
            .collect();
        ranges.sort();
        let mut next = 0;
        ranges.retain(|(first, last, _)| {
            let keep = u32::from(*first) >= next;
            if keep {
                next = u32::from(*last) + 1;
            }
            keep
        });
        SlotMap { ranges }
    }
}

/// Where a master is: host, port, id, and perhaps more about it.
fn endpoint(master: &[Value], at: &Address) -> Option<Address> {
    let [host, Value::Int(port), rest @ ..] = master else { return None };
    let port = u16::try_from(*port).ok()?;
    let host = match text(host) {
        // It does not know its own address, or is not to tell: then it is where we found it.
        None | Some("") => at.host.as_str(),
        // A name is wanted and it has none; behind it stands the address.
        Some("?") => rest.iter().find_map(ip).unwrap_or(&at.host),
        Some(host) => host,
    };
    Some(Address::new(host, port))
}

fn ip(more: &Value) -> Option<&str> {
    match more {
        Value::Map(pairs) => pairs.iter().find(|(name, _)| text(name) == Some("ip")).and_then(|(_, ip)| text(ip)),
        Value::Array(list) => list.chunks_exact(2).find(|pair| text(&pair[0]) == Some("ip")).and_then(|pair| text(&pair[1])),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// The slot of a hash tag, or of a key that has none.
pub(crate) fn slot_of_tag(tag: &[u8]) -> u16 {
    // CRC16 as XMODEM has it.
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 })
    });
    crc % SLOTS
}

/// Asks nodes which slots are where, all at once, and takes the best view: of a node that is in touch with the others, the
/// most complete, the newest. Dead nodes are passed over.
///
/// # Cancel safety
/// It only reads; dropped, its connections are closed.
pub(crate) async fn discover(settings: &Settings, seeds: &[Address]) -> Result<SlotMap> {
    let settings = Arc::new(settings.clone());
    let mut asked = JoinSet::new();
    for seed in seeds {
        let (settings, seed) = (Arc::clone(&settings), seed.clone());
        asked.spawn(async move { ask(&settings, &seed).await });
    }
    let (views, faults) = gather(asked, |views| views.iter().any(Seen::is_whole)).await;
    match views.into_iter().max_by_key(Seen::rank) {
        Some(view) if view.map.covered() > 0 => Ok(view.map),
        Some(view) => Err(Error::new(ErrorKind::Unavailable, "the cluster has given no slots to its nodes")
            .with_store(settings.describe())
            .with_hint(format!("`redis-cli --cluster check {}` says what is missing", view.from))),
        None => Err(nobody("no node of the cluster could be asked", &settings, faults)),
    }
}

/// What one node says.
struct Seen {
    from: Address,
    map: SlotMap,
    /// It says that all is well, so it is in touch with most others.
    ok: bool,
    epoch: u64,
}

impl Seen {
    fn is_whole(&self) -> bool {
        self.ok && self.map.covered() == u32::from(SLOTS)
    }

    fn rank(&self) -> (bool, u32, u64) {
        (self.ok, self.map.covered(), self.epoch)
    }
}

async fn ask(settings: &Settings, at: &Address) -> Result<Seen> {
    let failed = |error| Error::from(explain_connect(error, at, settings));
    let client = settings.client(at)?;
    let asking = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&settings.connection(at)).await?;
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let mut info = redis::cmd("CLUSTER");
        info.arg("INFO");
        let mut other = connection.clone();
        let (slots, info) = tokio::join!(connection.send_packed_command(&slots), other.send_packed_command(&info));
        RedisResult::Ok((slots.and_then(Value::extract_error)?, info))
    };
    let (slots, info) = match tokio::time::timeout(settings.connect_limit, asking).await {
        Ok(answer) => answer.map_err(failed)?,
        Err(_) => return Err(failed(std::io::Error::from(std::io::ErrorKind::TimedOut).into())),
    };
    // Without the right to ask for it, a view is as good as the next.
    let info = info.ok().as_ref().and_then(text).unwrap_or_default().to_owned();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let epoch = field("cluster_current_epoch").and_then(|text| text.parse().ok()).unwrap_or(0);
    let ok = field("cluster_state").is_none_or(|state| state == "ok");
    Ok(Seen { from: at.clone(), map: SlotMap::parse(&slots, at), ok, epoch })
}

/// Waits for answers: for all of them, or, once there are enough, a moment longer for those that are as quick.
pub(crate) async fn gather<T: Send + 'static>(
    mut asked: JoinSet<Result<T>>,
    are_enough: impl Fn(&[T]) -> bool,
) -> (Vec<T>, Vec<Error>) {
    let (mut answers, mut faults) = (Vec::new(), Vec::new());
    let mut enough = false;
    loop {
        let next = match enough {
            true => tokio::time::timeout(STRAGGLERS, asked.join_next()).await.unwrap_or(None),
            false => asked.join_next().await,
        };
        match next {
            None => return (answers, faults),
            Some(Ok(Ok(answer))) => {
                answers.push(answer);
                enough = enough || are_enough(&answers);
            }
            Some(Ok(Err(fault))) => faults.push(fault),
            // A task that panicked or was ended said nothing.
            Some(Err(_)) => {}
        }
    }
}

/// Nobody answered: what each one said. It is a passing trouble unless all were refused for good.
pub(crate) fn nobody(what: &str, settings: &Settings, mut faults: Vec<Error>) -> Error {
    let passing = faults.iter().any(Error::is_transient) || faults.is_empty();
    if faults.len() == 1 {
        return faults.remove(0);
    }
    let kind = if passing { ErrorKind::Unavailable } else { ErrorKind::Backend };
    let each: Vec<String> = faults.iter().map(Error::to_string).collect();
    Error::new(kind, what).with_store(settings.describe()).with_source(each.join("; "))
}

const STRAGGLERS: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
