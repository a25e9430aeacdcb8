//! One leader at a time.

use std::time::Duration;

use crate::client::Asker;
use crate::options::options;
use crate::{Client, Guard, Mode, Note, Origin, Result, Token, View, Wait, Watch};

/// One leader at a time. A term is the leader's token: every new leader has a higher one. The note is what the leader
/// shows to observers: an address, for example.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let election = client.election("scheduler")?.note("10.0.0.7:8080")?;
/// let leadership = election.campaign().await?;
/// let leader = election.leader().await?.expect("we are");
/// assert_eq!((leader.term, leader.note.as_str()), (leadership.token(), "10.0.0.7:8080"));
/// election.resign(leadership).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    pub(crate) ask: Asker,
    pub(crate) client: Client,
}

options!(Election);

impl Election {
    /// Campaigns, waiting for as long as it takes. Whoever has the guard leads for as long as it may be trusted.
    ///
    /// # Cancel safety
    /// Dropping it withdraws and leaves nothing behind.
    pub async fn campaign(&self) -> Result<Guard> {
        self.ask.ask_for_ever(Mode::Exclusive).await
    }

    /// Leads if nobody does; `None` otherwise.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_campaign(&self) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Exclusive, Wait::No).await
    }

    /// Leads if that is possible within `wait`.
    ///
    /// # Cancel safety
    /// Dropping it withdraws and leaves nothing behind.
    pub async fn try_campaign_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Exclusive, Wait::For(wait)).await
    }

    /// Steps down. The guard stops being trusted here before the store lets anybody else lead.
    ///
    /// # Cancel safety
    /// Dropping it hands the rest to the background.
    pub async fn resign(&self, leadership: Guard) -> Result<()> {
        leadership.release().await
    }

    /// Who leads now.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        Ok(Leader::of(&self.client.view(self.ask.name.as_str()).await?))
    }

    /// Tells who leads, and of every change: a new leader, or that there is none. A leader that came and went between two looks
    /// may be missed.
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer { watch: self.client.watch(self.ask.name.as_str())?, last: Token::new(0), told: None })
    }
}

/// A leader, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The term: the leader's token.
    pub term: Token,
    /// What it shows.
    pub note: Note,
    /// Who it is.
    pub origin: Origin,
}

impl Leader {
    fn of(view: &View) -> Option<Leader> {
        let holder = view.holders.iter().find(|holder| !holder.closing)?;
        Some(Leader { term: holder.token, note: holder.note.clone(), origin: holder.origin.clone() })
    }
}

/// Tells of every change of the leader. From [`Election::observe`].
#[derive(Debug)]
pub struct Observer {
    watch: Watch,
    /// The highest term that was told.
    last: Token,
    /// Whether a leader was told last, or that there is none.
    told: Option<bool>,
}

impl Observer {
    /// The first call says at once who leads, or `None` if nobody does; each further one waits until that changes. Terms rise
    /// from leader to leader; only one that was thought to be gone may come back with its own.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the next call says the same, or what has become of it since.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let leader = Leader::of(&self.watch.next().await?);
            let is_news = match &leader {
                Some(leader) => leader.term > self.last || (leader.term == self.last && self.told == Some(false)),
                None => self.told != Some(false),
            };
            if is_news {
                self.told = Some(leader.is_some());
                self.last = leader.as_ref().map_or(self.last, |leader| leader.term);
                return Ok(leader);
            }
        }
    }
}
