//! The messages of etcd's gRPC interface, as far as locks need them: derived by hand, so that building needs no protoc. Field
//! numbers are those of etcd's own definition; fields that are not here are skipped when they come.

use prost::{Message, Oneof};

/// What every answer begins with.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    /// Rises with every election.
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

/// A key with its value.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(crate) lease: i64,
}

/// Which way a range is sorted.
pub(crate) const ASCEND: i32 = 1;
pub(crate) const DESCEND: i32 = 2;
/// What it is sorted by.
pub(crate) const BY_CREATE: i32 = 2;

/// Reads keys. Never `serializable`: every read is linearizable.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) limit: i64,
    #[prost(int64, tag = "4")]
    pub(crate) revision: i64,
    #[prost(int32, tag = "5")]
    pub(crate) sort_order: i32,
    #[prost(int32, tag = "6")]
    pub(crate) sort_target: i32,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(crate) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(crate) more: bool,
    #[prost(int64, tag = "4")]
    pub(crate) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
    #[prost(bool, tag = "5")]
    pub(crate) ignore_value: bool,
    #[prost(bool, tag = "6")]
    pub(crate) ignore_lease: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
}

/// One step of a transaction.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(oneof = "Op", tags = "1, 2, 3")]
    pub(crate) op: Option<Op>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRangeRequest),
}

/// What one step read; of those that write nothing is needed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(crate) range: Option<RangeResponse>,
}

/// How a compare compares.
pub(crate) const EQUAL: i32 = 0;
pub(crate) const LESS: i32 = 2;
/// What it compares.
pub(crate) const CREATED: i32 = 1;
pub(crate) const MODIFIED: i32 = 2;
pub(crate) const LEASE: i32 = 4;

/// A condition of a transaction: over a range it must hold for every key there, and an empty range is a key of revision 0.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "1")]
    pub(crate) result: i32,
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(oneof = "Against", tags = "5, 6, 8")]
    pub(crate) against: Option<Against>,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) range_end: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Oneof)]
pub(crate) enum Against {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(crate) responses: Vec<ResponseOp>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(message, required, tag = "1")]
    pub(crate) header: Header,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
    #[prost(bool, tag = "2")]
    pub(crate) keys: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LeaseTimeToLiveResponse {
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub(crate) keys: Vec<Vec<u8>>,
}

/// What is said on a watch stream.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "Watching", tags = "1, 2")]
    pub(crate) watching: Option<Watching>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Watching {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<WatchEvent>,
}

/// The type of an event whose key is gone; 0 is a key that was written.
pub(crate) const GONE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchEvent {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Member {
    #[prost(bool, tag = "5")]
    pub(crate) is_learner: bool,
}

impl RangeRequest {
    /// One key.
    pub(crate) fn one(key: &[u8]) -> Self {
        RangeRequest { key: key.to_vec(), ..Default::default() }
    }

    /// Every key in a range.
    pub(crate) fn of(range: &crate::schema::Range) -> Self {
        RangeRequest { key: range.from.clone(), range_end: range.to.clone(), ..Default::default() }
    }

    /// The oldest `limit` of them first; all of them for 0.
    pub(crate) fn oldest(mut self, limit: i64) -> Self {
        (self.sort_order, self.sort_target, self.limit) = (ASCEND, BY_CREATE, limit);
        self
    }

    /// The newest `limit` of them first.
    pub(crate) fn newest(mut self, limit: i64) -> Self {
        (self.sort_order, self.sort_target, self.limit) = (DESCEND, BY_CREATE, limit);
        self
    }

    /// Only those that are no newer than this.
    pub(crate) fn up_to(mut self, revision: i64) -> Self {
        self.max_create_revision = revision;
        self
    }

    /// Without their values.
    pub(crate) fn keys(mut self) -> Self {
        self.keys_only = true;
        self
    }
}

impl From<Op> for RequestOp {
    fn from(op: Op) -> Self {
        RequestOp { op: Some(op) }
    }
}

/// A step that reads.
pub(crate) fn read(range: RangeRequest) -> RequestOp {
    Op::Range(range).into()
}

/// A step that writes a key on a lease.
pub(crate) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    Op::Put(PutRequest { key: key.to_vec(), value, lease, ..Default::default() }).into()
}

/// A step that writes a key anew and leaves it on the lease that it is on.
pub(crate) fn rewrite(key: &[u8], value: Vec<u8>) -> RequestOp {
    Op::Put(PutRequest { key: key.to_vec(), value, ignore_lease: true, ..Default::default() }).into()
}

/// A step that leaves a key as it is, and puts it on another lease.
pub(crate) fn moved(key: &[u8], lease: i64) -> RequestOp {
    Op::Put(PutRequest { key: key.to_vec(), lease, ignore_value: true, ..Default::default() }).into()
}

/// A step that removes a key.
pub(crate) fn delete(key: &[u8]) -> RequestOp {
    Op::Delete(DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() }).into()
}

/// A condition: no such key.
pub(crate) fn absent(key: &[u8]) -> Compare {
    created_at(key, 0)
}

/// A condition: the key is the one that was made then.
pub(crate) fn created_at(key: &[u8], revision: i64) -> Compare {
    let against = Some(Against::CreateRevision(revision));
    Compare { result: EQUAL, target: CREATED, key: key.to_vec(), against, range_end: Vec::new() }
}

/// A condition: the key is on this lease.
pub(crate) fn is_on(key: &[u8], lease: i64) -> Compare {
    let against = Some(Against::Lease(lease));
    Compare { result: EQUAL, target: LEASE, key: key.to_vec(), against, range_end: Vec::new() }
}

/// A condition: nobody has written the key since.
pub(crate) fn unchanged(key: &[u8], revision: i64) -> Compare {
    let against = Some(Against::ModRevision(revision));
    Compare { result: EQUAL, target: MODIFIED, key: key.to_vec(), against, range_end: Vec::new() }
}

/// A condition: no key in the range at all.
pub(crate) fn empty(range: &crate::schema::Range) -> Compare {
    Compare { range_end: range.to.clone(), ..absent(&range.from) }
}

/// A condition: nothing in the range was written after this revision. What was removed does not count.
pub(crate) fn nothing_since(range: &crate::schema::Range, revision: i64) -> Compare {
    let against = Some(Against::ModRevision(revision + 1));
    Compare { result: LESS, target: MODIFIED, key: range.from.clone(), against, range_end: range.to.clone() }
}

impl TxnResponse {
    /// What its steps read, in order.
    pub(crate) fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|response| response.range)
    }

    /// The keys that they read.
    pub(crate) fn reads(self) -> Vec<Vec<KeyValue>> {
        self.ranges().map(|range| range.kvs).collect()
    }
}
