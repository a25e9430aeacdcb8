//! A leader with a standby: two nodes, one of which leads; the other takes over as soon as it can.
//!
//! Shows `campaign`, `asked` and `resign` (stepping down when somebody asks), `run` (work stops at loss), and `observe`:
//! every new leader has a higher term, so whatever a leader writes can carry its term and an old one's be refused.

use std::time::Duration;

use tenure::{Ask, Client, Guard, Result};
use tenure_examples::Store;

/// What every node runs, for as long as it lives.
async fn node(name: &str, client: Client) -> Result<()> {
    let election = client.election("scheduler")?.note(name)?;
    loop {
        let leadership = election.campaign().await?; // in line, for as long as another node leads
        match leadership.run(schedule(&leadership)).await {
            Ok(ask) => {
                println!("{name} steps down: {}", ask.reason.as_str());
                let _ = election.resign(leadership).await; // whoever lost it meanwhile does not lead either
            }
            Err(lost) => println!("{name} has stopped: {lost}"),
        }
    }
}

/// A leader's work, until somebody asks it to stop. Should the leadership be lost, this is dropped where it stands.
async fn schedule(leadership: &Guard) -> Ask {
    let mut pulse = tokio::time::interval(Duration::from_millis(10));
    loop {
        tokio::select! {
            ask = leadership.asked() => return ask,
            _ = pulse.tick() => {} // hand out work, marked with leadership.token()
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = Store::from_args();
    for name in ["node A", "node B"] {
        tokio::spawn(node(name, store.connect().await?));
    }

    let client = store.connect().await?;
    let mut leaders = client.election("scheduler")?.observe()?;
    let mut act = 0;
    while act < 3 {
        let Some(leader) = leaders.next().await? else { continue }; // nobody leads for a moment
        act += 1;
        println!("term {}: {} leads", leader.term, leader.note.as_str());
        let mut changes = client.watch("scheduler")?;
        while changes.next().await?.line.is_empty() {} // until the other one stands by
        match act {
            1 => drop(client.ask("scheduler", "an update of this node").await?),
            2 => drop(client.break_holds("scheduler", Some(leader.term)).await?),
            _ => println!("that is all"),
        }
    }
    Ok(())
}
