//! etcd's gRPC calls, each as one function: what goes out, what comes back.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::link::unreachable;
use crate::proto::*;

/// The calls to one member.
#[derive(Clone)]
pub(crate) struct Wire {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

type Answer<T> = Result<T, Status>;

impl Wire {
    pub(crate) fn new(channel: Channel, token: Option<MetadataValue<Ascii>>) -> Self {
        Wire { channel, token }
    }

    /// The same, logged in.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.token = token.parse().ok().map(|mut value: MetadataValue<Ascii>| {
            value.set_sensitive(true);
            value
        });
        self
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        // A member that has lost its leader says so at once, and ends its streams.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        request
    }

    async fn grpc(&self) -> Answer<Grpc<Channel>> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST);
        grpc.ready().await.map_err(unreachable)?;
        Ok(grpc)
    }

    async fn unary<M, N>(&self, path: &'static str, message: M) -> Answer<N>
    where
        M: Message + 'static,
        N: Message + Default + 'static,
    {
        let (mut grpc, codec) = (self.grpc().await?, ProstCodec::<M, N>::default());
        let answer = grpc.unary(self.request(message), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    pub(crate) fn range(&self, request: RangeRequest) -> impl Future<Output = Answer<RangeResponse>> {
        self.unary("/etcdserverpb.KV/Range", request)
    }

    pub(crate) fn put(&self, request: PutRequest) -> impl Future<Output = Answer<Nothing>> {
        self.unary("/etcdserverpb.KV/Put", request)
    }

    pub(crate) fn delete(&self, request: DeleteRangeRequest) -> impl Future<Output = Answer<Nothing>> {
        self.unary("/etcdserverpb.KV/DeleteRange", request)
    }

    pub(crate) fn txn(&self, request: TxnRequest) -> impl Future<Output = Answer<TxnResponse>> {
        self.unary("/etcdserverpb.KV/Txn", request)
    }

    pub(crate) fn lease_grant(&self, request: LeaseGrantRequest) -> impl Future<Output = Answer<LeaseGrantResponse>> {
        self.unary("/etcdserverpb.Lease/LeaseGrant", request)
    }

    pub(crate) fn lease_revoke(&self, id: i64) -> impl Future<Output = Answer<Nothing>> {
        self.unary("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id })
    }

    pub(crate) fn time_to_live(&self, id: i64) -> impl Future<Output = Answer<LeaseTimeToLiveResponse>> {
        self.unary("/etcdserverpb.Lease/LeaseTimeToLive", LeaseTimeToLiveRequest { id, keys: true })
    }

    pub(crate) fn authenticate(&self, request: AuthenticateRequest) -> impl Future<Output = Answer<AuthenticateResponse>> {
        self.unary("/etcdserverpb.Auth/Authenticate", request)
    }

    pub(crate) fn status(&self) -> impl Future<Output = Answer<StatusResponse>> {
        self.unary("/etcdserverpb.Maintenance/Status", Nothing {})
    }

    pub(crate) fn members(&self) -> impl Future<Output = Answer<MemberListResponse>> {
        self.unary("/etcdserverpb.Cluster/MemberList", Nothing {})
    }

    /// Keeps a lease alive once: how many seconds it has again, 0 if it is gone, and the term in which that was said. A stream of its own for one question, which
    /// is no more to the server than a call, and needs nobody who matches answers to questions.
    pub(crate) async fn keep_alive(&self, id: i64) -> Answer<(i64, u64)> {
        let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = ProstCodec::<LeaseRequest, LeaseKeepAliveResponse>::default();
        let request = self.request(Once(Some(LeaseRequest { id })));
        let mut answers = self.grpc().await?.streaming(request, path, codec).await?.into_inner();
        let answer = answers.message().await?;
        let answer = answer.ok_or_else(|| Status::unavailable("the stream ended"))?;
        Ok((answer.ttl, answer.header.raft_term))
    }

    /// Opens a watch stream that says what comes through the channel.
    pub(crate) async fn watch(&self, requests: UnboundedReceiver<WatchRequest>) -> Answer<Streaming<WatchResponse>> {
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        Ok(self.grpc().await?.streaming(self.request(Received(requests)), path, codec).await?.into_inner())
    }
}

/// A stream of one.
struct Once<T>(Option<T>);

impl<T: Unpin> Stream for Once<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(self.0.take())
    }
}

/// A channel's other end as a stream.
struct Received<T>(UnboundedReceiver<T>);

impl<T> Stream for Received<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// Of one message: the keys of a lease with a hundred thousand holds.
const LARGEST: usize = 32 << 20;
