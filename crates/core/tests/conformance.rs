//! The memory store keeps every promise: it is the one that others are compared with.

tenure_testkit::conformance!(memory => tenure_testkit::MemoryHarness);
