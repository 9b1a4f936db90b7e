//! Records in MySQL or MariaDB.
