//! The wire of ZooKeeper: requests as bytes, answers from bytes.
//!
//! Every message is a length and then a record of big-endian numbers and length-prefixed strings. Only what this store needs is
//! here, and nothing that waits: pure functions, tested on bytes that servers have sent and on rubbish.

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A node, with what it says; the answer has its path and its stat.
    Create { path: String, data: Vec<u8>, kind: NodeKind },
    /// Ends a node, whatever its version.
    Delete { path: String, version: i32 },
    /// What a node says.
    Get { path: String, watch: bool },
    /// Says something else, if the version is still this one.
    Set { path: String, data: Vec<u8>, version: i32 },
    /// The names of a node's children, and the node's own stat.
    Children { path: String, watch: bool },
    /// Lets this member catch up with what its leader has done.
    Sync { path: String },
    /// Several writes, all or none.
    Multi(Vec<Op>),
}

/// A part of a [`Request::Multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create {
        path: String,
        data: Vec<u8>,
        kind: NodeKind,
    },
    Delete {
        path: String,
        version: i32,
    },
    Set {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    /// Only if the node is there, with this version.
    Check {
        path: String,
        version: i32,
    },
}

/// How long a node lives and who names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// Until somebody deletes it.
    Persistent,
    /// As long as the session that made it.
    Ephemeral,
    /// The same, with a number at the end of its name that the server draws.
    EphemeralSequential,
    /// Until it had children and has none any more.
    Container,
}

impl NodeKind {
    fn flags(self) -> i32 {
        match self {
            NodeKind::Persistent => 0,
            NodeKind::Ephemeral => 1,
            NodeKind::EphemeralSequential => 3,
            NodeKind::Container => 4,
        }
    }
}

/// What a server says about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that made it: the token of the lock.
    pub(crate) czxid: i64,
    /// The transaction that wrote it last.
    pub(crate) mzxid: i64,
    /// When it was made, in milliseconds of the leader's wall clock.
    pub(crate) ctime: i64,
    /// How often it was written.
    pub(crate) version: i32,
    /// How often its children changed.
    pub(crate) cversion: i32,
    /// The session that it lives with, or 0: for a container, too.
    pub(crate) owner: i64,
    /// How many children it has.
    pub(crate) children: i32,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The path of the new node, and what the server says about it.
    Created(String, Stat),
    /// Written: what the server says about it now.
    Stat(Stat),
    /// Done, each part, in this transaction.
    Multi(i64),
    /// What a node says.
    Data(Vec<u8>, Stat),
    /// The names of a node's children, and when that was.
    Children(Vec<String>, Listed),
    /// Done.
    Done,
}

/// When a list was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The last transaction that the member had done.
    pub(crate) zxid: i64,
    /// How many children the node has ever had, but for the highest bit.
    pub(crate) creates: u32,
}

/// A server's no. The numbers are ZooKeeper's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) i32);

impl Refusal {
    pub(crate) const UNIMPLEMENTED: Refusal = Refusal(-6);
    pub(crate) const NO_NODE: Refusal = Refusal(-101);
    pub(crate) const NO_AUTH: Refusal = Refusal(-102);
    pub(crate) const BAD_VERSION: Refusal = Refusal(-103);
    pub(crate) const NODE_EXISTS: Refusal = Refusal(-110);
    pub(crate) const NOT_EMPTY: Refusal = Refusal(-111);
    pub(crate) const SESSION_EXPIRED: Refusal = Refusal(-112);
    pub(crate) const INVALID_ACL: Refusal = Refusal(-114);
    pub(crate) const SESSION_MOVED: Refusal = Refusal(-118);
    pub(crate) const NOT_READ_ONLY: Refusal = Refusal(-119);

    /// Whether the leader said so in a transaction of its own, which a quorum has: a refused write is as good a proof of the
    /// leader as one that was done. A member that looks at rights by itself (`enableEagerACLCheck`) says no without a number of a
    /// transaction, and proves nothing.
    pub(crate) fn went_through_the_quorum(self, zxid: i64) -> bool {
        zxid > 0 && [Self::NO_NODE, Self::NO_AUTH, Self::BAD_VERSION, Self::NODE_EXISTS, Self::NOT_EMPTY].contains(&self)
    }
}

/// Something that a server says unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// What happened.
    pub(crate) event: Event,
    /// To which node.
    pub(crate) path: String,
}

/// What happened to a node that somebody watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
    /// The session's own state, or something that this client never asked for.
    Other,
}

/// Who may do what with a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody everything.
    World,
    /// Everything for whoever logged in as this connection did, nothing for others.
    Creator,
}

pub(crate) const XID_NOTICE: i32 = -1;
pub(crate) const XID_PING: i32 = -2;
pub(crate) const XID_AUTH: i32 = -4;
pub(crate) const XID_SET_WATCHES: i32 = -8;

const OP_CREATE_PLAIN: i32 = 1;
const OP_DELETE: i32 = 2;
const OP_GET: i32 = 4;
const OP_SET: i32 = 5;
const OP_SYNC: i32 = 9;
const OP_PING: i32 = 11;
const OP_CHILDREN: i32 = 12;
const OP_CHECK: i32 = 13;
const OP_MULTI: i32 = 14;
const OP_CREATE: i32 = 15;
const OP_CREATE_CONTAINER: i32 = 19;
const OP_AUTH: i32 = 100;
const OP_SET_WATCHES: i32 = 101;
const OP_SASL: i32 = 102;
const OP_CLOSE: i32 = -11;

const ALL_RIGHTS: i32 = 31;

impl Request {
    /// Whether it becomes a transaction: then its answer proves that the leader has a quorum behind it.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Request::Get { .. } | Request::Children { .. } | Request::Sync { .. })
    }

    /// As a message with this number.
    pub(crate) fn encode(&self, xid: i32, access: Access, out: &mut Vec<u8>) {
        message(out, |out| match self {
            Request::Create { path, data, kind } => {
                let op = if *kind == NodeKind::Container { OP_CREATE_CONTAINER } else { OP_CREATE };
                header(out, xid, op);
                create(out, path, data, access, *kind);
            }
            Request::Delete { path, version } => {
                header(out, xid, OP_DELETE);
                text(out, path);
                int(out, *version);
            }
            Request::Get { path, watch } => {
                header(out, xid, OP_GET);
                text(out, path);
                out.push(u8::from(*watch));
            }
            Request::Set { path, data, version } => {
                header(out, xid, OP_SET);
                text(out, path);
                buffer(out, data);
                int(out, *version);
            }
            Request::Children { path, watch } => {
                header(out, xid, OP_CHILDREN);
                text(out, path);
                out.push(u8::from(*watch));
            }
            Request::Sync { path } => {
                header(out, xid, OP_SYNC);
                text(out, path);
            }
            Request::Multi(ops) => {
                header(out, xid, OP_MULTI);
                ops.iter().for_each(|op| op.encode(access, out));
                part(out, -1, true, -1);
            }
        });
    }

    /// Its answer, after the header, which has the number of the transaction.
    pub(crate) fn decode(&self, body: &mut Reader<'_>, zxid: i64) -> Option<Result<Reply, Refusal>> {
        Some(Ok(match self {
            Request::Create { .. } => Reply::Created(body.text()?, body.stat()?),
            Request::Delete { .. } | Request::Sync { .. } => Reply::Done,
            Request::Get { .. } => Reply::Data(body.buffer()?, body.stat()?),
            Request::Set { .. } => Reply::Stat(body.stat()?),
            Request::Children { .. } => {
                let many = body.int()?.max(0);
                let names = (0..many).map(|_| body.text()).collect::<Option<_>>()?;
                let stat = body.stat()?;
                // What a server shows as `cversion` is twice the creates less the children that there are.
                let creates = stat.cversion.wrapping_add(stat.children) as u32 >> 1;
                Reply::Children(names, Listed { zxid, creates })
            }
            Request::Multi(_) => return multi(body, zxid),
        }))
    }
}

impl Op {
    fn encode(&self, access: Access, out: &mut Vec<u8>) {
        match self {
            Op::Create { path, data, kind } => {
                part(out, OP_CREATE_PLAIN, false, -1);
                create(out, path, data, access, *kind);
            }
            Op::Delete { path, version } => {
                part(out, OP_DELETE, false, -1);
                text(out, path);
                int(out, *version);
            }
            Op::Set { path, data, version } => {
                part(out, OP_SET, false, -1);
                text(out, path);
                buffer(out, data);
                int(out, *version);
            }
            Op::Check { path, version } => {
                part(out, OP_CHECK, false, -1);
                text(out, path);
                int(out, *version);
            }
        }
    }
}

/// The answer to several in one: the first refusal that is a reason and not a consequence, or none.
fn multi(body: &mut Reader<'_>, zxid: i64) -> Option<Result<Reply, Refusal>> {
    let mut refusal = None;
    loop {
        let (op, done) = (body.int()?, body.byte()? != 0);
        body.int()?;
        if done {
            return Some(refusal.map_or(Ok(Reply::Multi(zxid)), Err));
        }
        match op {
            OP_CREATE_PLAIN => drop(body.text()?),
            OP_CREATE => drop((body.text()?, body.stat()?)),
            OP_SET => drop(body.stat()?),
            OP_DELETE | OP_CHECK => {}
            -1 => {
                let code = body.int()?;
                if code != 0 && code != RUNTIME_INCONSISTENCY {
                    refusal = Some(Refusal(code));
                }
            }
            _ => return None,
        }
    }
}

/// "Not done, since another part of it was refused."
const RUNTIME_INCONSISTENCY: i32 = -2;

/// The first message of a connection: a new session, or one that goes on.
pub(crate) fn connect(last_zxid: i64, timeout_ms: i32, session: i64, password: &[u8], out: &mut Vec<u8>) {
    message(out, |out| {
        int(out, 0);
        long(out, last_zxid);
        int(out, timeout_ms);
        long(out, session);
        buffer(out, password);
        out.push(0); // a member without a quorum is of no use to a lock
    });
}

/// What a server says to the first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Connected {
    /// The timeout that it grants; 0 or less if the session is over.
    pub(crate) timeout_ms: i32,
    /// The session.
    pub(crate) session: i64,
    /// What whoever goes on with it must show.
    pub(crate) password: Vec<u8>,
}

/// Reads the first answer.
pub(crate) fn connected(body: &[u8]) -> Option<Connected> {
    let mut body = Reader(body);
    body.int()?;
    Some(Connected { timeout_ms: body.int()?, session: body.long()?, password: body.buffer()? })
}

/// "I am here."
pub(crate) fn ping(out: &mut Vec<u8>) {
    message(out, |out| header(out, XID_PING, OP_PING));
}

/// "The session is over."
pub(crate) fn close(xid: i32, out: &mut Vec<u8>) {
    message(out, |out| header(out, xid, OP_CLOSE));
}

/// Who we are.
pub(crate) fn digest_login(user: &str, password: &str, out: &mut Vec<u8>) {
    message(out, |out| {
        header(out, XID_AUTH, OP_AUTH);
        int(out, 0);
        text(out, "digest");
        buffer(out, format!("{user}:{password}").as_bytes());
    });
}

/// One step of a SASL dialogue.
pub(crate) fn sasl(xid: i32, token: &[u8], out: &mut Vec<u8>) {
    message(out, |out| {
        header(out, xid, OP_SASL);
        buffer(out, token);
    });
}

/// Puts watches again that went with a connection: whatever happened to these nodes after `since` is told at once.
pub(crate) fn set_watches(since: i64, data: &[&str], children: &[&str], out: &mut Vec<u8>) {
    message(out, |out| {
        header(out, XID_SET_WATCHES, OP_SET_WATCHES);
        long(out, since);
        for paths in [data, &[], children] {
            int(out, paths.len() as i32);
            paths.iter().for_each(|path| text(out, path));
        }
    });
}

/// What every answer begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    pub(crate) error: i32,
}

/// Reads the header of an answer.
pub(crate) fn answer(body: &mut Reader<'_>) -> Option<Answer> {
    Some(Answer { xid: body.int()?, zxid: body.long()?, error: body.int()? })
}

/// Reads a notice, after the header.
pub(crate) fn notice(body: &mut Reader<'_>) -> Option<Notice> {
    let event = match body.int()? {
        1 => Event::Created,
        2 => Event::Deleted,
        3 => Event::DataChanged,
        4 => Event::ChildrenChanged,
        _ => Event::Other,
    };
    body.int()?;
    Some(Notice { event, path: body.text()? })
}

fn message(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    int(out, 0);
    body(out);
    let length = (out.len() - start - 4) as i32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn header(out: &mut Vec<u8>, xid: i32, op: i32) {
    int(out, xid);
    int(out, op);
}

fn part(out: &mut Vec<u8>, op: i32, done: bool, error: i32) {
    int(out, op);
    out.push(u8::from(done));
    int(out, error);
}

fn create(out: &mut Vec<u8>, path: &str, data: &[u8], access: Access, kind: NodeKind) {
    text(out, path);
    buffer(out, data);
    int(out, 1);
    int(out, ALL_RIGHTS);
    let (scheme, who) = match access {
        Access::World => ("world", "anyone"),
        Access::Creator => ("auth", ""),
    };
    text(out, scheme);
    text(out, who);
    int(out, kind.flags());
}

fn int(out: &mut Vec<u8>, number: i32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn long(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    buffer(out, text.as_bytes());
}

fn buffer(out: &mut Vec<u8>, bytes: &[u8]) {
    int(out, bytes.len() as i32);
    out.extend_from_slice(bytes);
}

/// Reads a record from its start; `None` where it ends too early or is no record.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*bytes))
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_be_bytes(*bytes))
    }

    /// Bytes with their length before them; a length of -1 is none at all.
    pub(crate) fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.buffer()?).ok()
    }

    fn stat(&mut self) -> Option<Stat> {
        let (czxid, mzxid, ctime, _mtime) = (self.long()?, self.long()?, self.long()?, self.long()?);
        let (version, cversion, _aversion) = (self.int()?, self.int()?, self.int()?);
        let owner = self.long()?;
        let (_length, children, _pzxid) = (self.int()?, self.int()?, self.long()?);
        Some(Stat { czxid, mzxid, ctime, version, cversion, owner, children })
    }
}

#[cfg(test)]
mod tests;
