//! Records in Redis or Valkey, on one server or on a cluster.
