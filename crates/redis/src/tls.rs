//! What TLS needs: certificates, and one crypto provider.
