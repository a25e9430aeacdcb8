//! Looking: who holds and who waits, which names are in use; and what an operator does about it.
//!
//! A look begins with a `sync`, so that the member has what its leader had done when it was asked; it needs no right to write.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Ask, Clock, Holder, LockName, Result, Token, View, Waiter};

use crate::error::refused;
use crate::inner::Inner;
use crate::layout::{Layout, Place, unescape};
use crate::line::Line;
use crate::session::{Outcome, Trouble, Watched};
use crate::ticket::Ticket;
use crate::wire::{Refusal, Reply, Request, Stat};

/// How often a watcher looks without being told: what a node says may change, too.
const WATCH_EVERY: Duration = Duration::from_millis(250);
/// How many names are looked at in one flight.
const NAMES_AT_ONCE: usize = 64;
/// How often a look, an ask or a break that somebody overtook is tried again.
const TRIES: usize = 8;

/// A claim as a look shows it.
struct Seen {
    place: Place,
    path: String,
    ticket: Ticket,
    stat: Stat,
    /// It is one of those that are in.
    holds: bool,
}

impl Seen {
    fn token(&self) -> Token {
        self.ticket.token.unwrap_or(Token::new(self.stat.czxid as u64))
    }

    /// How long it has been there, by the leader's clock and ours: for people.
    fn age(&self) -> Duration {
        let now = Duration::from_micros(Clock::Boot.wall_micros());
        now.saturating_sub(Duration::from_millis(self.stat.ctime.max(0) as u64))
    }
}

impl Inner {
    /// Who holds and who waits.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn view(self: &Arc<Self>, name: &LockName) -> Result<View> {
        Ok(view_of(name, self.look(&self.parent(name)?).await?))
    }

    /// Everybody in line, with what they say. A node that goes between the list and the look at it may have become another one at
    /// the same place: then the line is listed again, a few times.
    async fn look(self: &Arc<Self>, parent: &str) -> Result<Vec<Seen>> {
        let mut tries = 0;
        loop {
            let children = self.children("look at", parent).await?;
            let (seen, whole) = self.seen(parent, &children).await?;
            tries += 1;
            if whole || tries == TRIES {
                return Ok(seen);
            }
        }
    }

    /// Everybody in this line, with what they say, and whether all of them were there.
    async fn seen(self: &Arc<Self>, parent: &str, children: &[String]) -> Result<(Vec<Seen>, bool)> {
        let line = Line::read(self.settings.layout, children);
        let holders = line.holders();
        let path = |place: &Place| format!("{parent}/{}", place.node);
        let gets: Vec<Request> = line.0.iter().map(|place| Request::Get { path: path(place), watch: false }).collect();
        if gets.is_empty() {
            return Ok((Vec::new(), true));
        }
        let all = gets.len();
        let mut seen = Vec::with_capacity(all);
        for ((at, place), outcome) in line.0.into_iter().enumerate().zip(self.read("look at", &gets).await?) {
            match outcome {
                Ok(Reply::Data(data, stat)) => {
                    let path = format!("{parent}/{}", place.node);
                    let (ticket, holds) = (Ticket::decode(&data), at < holders);
                    seen.push(Seen { place, path, ticket, stat, holds });
                }
                Err(Trouble::Refused(Refusal::NO_NODE)) => {}
                Err(Trouble::Refused(refusal)) => return Err(refused(refusal, "look at", parent)),
                _ => {}
            }
        }
        let whole = seen.len() == all;
        Ok((seen, whole))
    }

    /// Names in use, in order.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn list_names(
        self: &Arc<Self>,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<View>> {
        if self.settings.layout == Layout::Curator {
            return Err(tenure_core::Error::new(
                tenure_core::ErrorKind::Unsupported,
                "Curator's locks cannot be listed: any node of the whole tree may be one",
            )
            .with_hint("Ask for one by its name, or look with zkCli"));
        }
        let root = format!("{}{}", self.settings.chroot, self.settings.root);
        let children = self.children("list", &root).await?;
        let mut names: Vec<LockName> = children.iter().filter_map(|child| unescape(child)).collect();
        names.retain(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after));
        names.sort_unstable();
        let mut views = Vec::new();
        for names in names.chunks(NAMES_AT_ONCE) {
            let parents: Vec<String> = names.iter().map(|name| self.parent(name)).collect::<Result<_>>()?;
            let gets: Vec<Request> =
                parents.iter().map(|path| Request::Children { path: path.clone(), watch: false }).collect();
            for ((name, parent), outcome) in names.iter().zip(&parents).zip(self.read("list", &gets).await?) {
                let Ok(Reply::Children(children, _)) = outcome else { continue };
                if views.len() >= limit {
                    return Ok(views);
                }
                let seen = match self.seen(parent, &children).await? {
                    (seen, true) => seen,
                    (_, false) => self.look(parent).await?,
                };
                let view = view_of(name, seen);
                if !view.is_free() {
                    views.push(view);
                }
            }
        }
        Ok(views)
    }

    /// The view, once it says something else.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn watch(self: &Arc<Self>, name: &LockName, seen: &View) -> Result<View> {
        let parent = self.parent(name)?;
        loop {
            let view = self.view(name).await?;
            if !view.says_the_same_as(seen) {
                return Ok(view);
            }
            let user = self.any_session().await?;
            let told = match tokio::time::timeout(self.settings.answer_limit, user.0.watch(Watched::Children, &parent)).await
            {
                // What is no claim is not in the view either.
                Ok(Ok((Reply::Children(children, _), told)))
                    if Line::read(self.settings.layout, &children).0.len() == view.holders.len() + view.line.len() =>
                {
                    told
                }
                Ok(Err(Trouble::Refused(Refusal::NO_NODE))) => {
                    tokio::time::sleep(WATCH_EVERY).await; // there is nothing to watch
                    continue;
                }
                _ => {
                    tokio::time::sleep(WATCH_EVERY / 10).await; // it has changed already
                    continue;
                }
            };
            let _ = tokio::time::timeout(WATCH_EVERY, told).await;
        }
    }

    /// Asks every holder to let go: writes it into their nodes, which they watch.
    ///
    /// # Cancel safety
    /// Dropped, some may have been asked.
    pub(crate) async fn request(self: &Arc<Self>, name: &LockName, ask: &Ask) -> Result<usize> {
        let write = |holder: &Seen| {
            let ticket = Ticket { asked: Some(ask.clone()), ..holder.ticket.clone() };
            Request::Set { path: holder.path.clone(), data: ticket.encode(), version: holder.stat.version }
        };
        self.to_holders(name, None, "write", write).await
    }

    /// Ends holds by force: their nodes have names of their own, so nobody else's is hit.
    ///
    /// # Cancel safety
    /// Dropped, some may be over.
    pub(crate) async fn break_holds(self: &Arc<Self>, name: &LockName, only: Option<Token>) -> Result<usize> {
        let delete = |holder: &Seen| Request::Delete { path: holder.path.clone(), version: -1 };
        self.to_holders(name, only, "delete", delete).await
    }

    /// Does this to every holder, or to that of one token; to how many.
    async fn to_holders(
        self: &Arc<Self>,
        name: &LockName,
        only: Option<Token>,
        what: &str,
        request: impl Fn(&Seen) -> Request,
    ) -> Result<usize> {
        let mut done = 0;
        for holder in self.holders(name).await? {
            let (key, mut seen, mut tries) = (holder.place.key, Some(holder), 0);
            while let Some(holder) = seen.take().filter(|holder| only.is_none_or(|only| only == holder.token())) {
                match self.once(request(&holder)).await? {
                    Ok(_) => done += 1,
                    // Somebody else wrote it meanwhile, or it has let go, or it is another node now: look again.
                    Err(Refusal::BAD_VERSION | Refusal::NO_NODE) if tries < TRIES => {
                        tries += 1;
                        seen = self.holders(name).await?.into_iter().find(|other| other.place.key == key);
                    }
                    Err(Refusal::NO_NODE) => {}
                    Err(refusal) => return Err(refused(refusal, what, &holder.path)),
                }
            }
        }
        Ok(done)
    }

    async fn holders(self: &Arc<Self>, name: &LockName) -> Result<Vec<Seen>> {
        let mut seen = self.look(&self.parent(name)?).await?;
        seen.retain(|seen| seen.holds);
        Ok(seen)
    }

    /// The names of a node's children; none if there is no such node.
    pub(crate) async fn children(self: &Arc<Self>, what: &str, parent: &str) -> Result<Vec<String>> {
        let look = [Request::Sync { path: parent.to_owned() }, Request::Children { path: parent.to_owned(), watch: false }];
        match self.read(what, &look).await?.pop() {
            Some(Ok(Reply::Children(children, _))) => Ok(children),
            Some(Err(Trouble::Refused(refusal))) if refusal != Refusal::NO_NODE => Err(refused(refusal, "list", parent)),
            _ => Ok(Vec::new()),
        }
    }

    /// Writes once; what had no answer is not tried again.
    pub(crate) async fn once(self: &Arc<Self>, request: Request) -> Result<Result<Reply, Refusal>> {
        let user = self.any_session().await?;
        let limit = self.settings.answer_limit;
        if let Ok(Err(fault)) = tokio::time::timeout(limit, user.0.here()).await {
            return Err(fault.explain(&self.settings.hosts(), &self.settings.describe()));
        }
        let outcome: Outcome = match user.0.send([request]) {
            Ok([asked]) => self.within(&user.0, "a write", asked).await?,
            Err(trouble) => Err(trouble),
        };
        match outcome {
            Ok(reply) => Ok(Ok(reply)),
            Err(Trouble::Refused(refusal)) => Ok(Err(refusal)),
            Err(trouble) => Err(self.explain(trouble, "write to", &self.settings.root)),
        }
    }
}

fn view_of(name: &LockName, seen: Vec<Seen>) -> View {
    let mut view = View::free(name.clone());
    view.kind = seen.first().map(|first| first.place.kind);
    for seen in seen {
        let (token, age) = (seen.token(), seen.age());
        let Seen { place, ticket, holds, .. } = seen;
        let claim = place.key.fingerprint();
        if holds {
            view.holders.push(Holder {
                claim,
                mode: place.mode,
                token,
                note: ticket.note,
                origin: ticket.origin,
                held_for: age,
                expires_in: ticket.ttl,
                closing: false,
                asked: ticket.asked,
            });
        } else {
            view.line.push(Waiter { claim, mode: place.mode, note: ticket.note, origin: ticket.origin, waiting_for: age });
        }
    }
    view.last = view.holders.iter().map(|holder| holder.token).max();
    view
}
