//! Group Replication: three MySQL servers that replicate to each other.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::options::Options;
use crate::port::free_port;
use crate::server::Server;

/// Time limit for the members to agree.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(180);
/// Pause between two looks at a member.
const POLL: Duration = Duration::from_millis(100);

/// Name of the group, which has the form of a UUID.
const NAME: &str = "1dee1dee-1dee-11ee-8dee-1dee1dee1dee";
const JOIN: &str = "START GROUP_REPLICATION";
/// Number of members that a member finds online.
const ONLINE: &str = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'";
/// State and role of the member itself.
const SELF: &str = "SELECT CONCAT(member_state, ' ', member_role) FROM performance_schema.replication_group_members WHERE member_id = @@server_uuid";

/// Members of a group that accept writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Primaries {
    /// One member. If it fails, the others elect another one.
    One,
    /// All members. The servers refuse to write tables that would make conflicts go unnoticed.
    All,
}

/// A group of three MySQL servers on 127.0.0.1, stopped on drop. A majority of two members goes on without the third.
#[derive(Debug)]
pub struct GroupReplication {
    members: Vec<Server>,
}

impl GroupReplication {
    /// Starts the members, and waits until each of them finds all of them online. The first one is a primary.
    ///
    /// A member that does not answer is expelled after twenty seconds: five until the others suspect it, and the rest for a
    /// machine that is busy.
    ///
    /// A test that kills a member needs [durable](Options::durable) servers. The group sends a member that joins again only
    /// what comes after its last transaction, so it cannot join if the kill has lost an earlier one.
    ///
    /// # Errors
    ///
    /// MySQL is not [installed](crate::Release::install), or the members did not start or did not agree.
    pub fn start(primaries: Primaries, options: &Options) -> anyhow::Result<Self> {
        let ports = (0..3)
            .map(|_| free_port())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let addresses: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        // Of several primaries, each waits for what the others have acknowledged.
        let (single, checked, consistency) = match primaries {
            Primaries::One => ("ON", "OFF", "BEFORE_ON_PRIMARY_FAILOVER"),
            Primaries::All => ("OFF", "ON", "BEFORE"),
        };
        let options = |member: usize| {
            // The data is initialised before the plug-in is loaded, so its settings may be unknown.
            let group = |name: &str| format!("loose-group-replication-{name}");
            options
                .clone()
                .or_else("innodb-buffer-pool-size", "32M")
                .set("server-id", &(member + 1).to_string())
                .set("gtid-mode", "ON")
                .set("enforce-gtid-consistency", "ON")
                .set("report-host", "127.0.0.1")
                .set("plugin-load-add", "group_replication.so")
                .set(&group("group-name"), NAME)
                .set(&group("start-on-boot"), "OFF")
                .set(&group("local-address"), &addresses[member])
                .set(&group("group-seeds"), &addresses.join(","))
                .set(&group("ip-allowlist"), "127.0.0.1/8")
                .set(&group("single-primary-mode"), single)
                .set(&group("consistency"), consistency)
                .set(&group("enforce-update-everywhere-checks"), checked)
                .set(&group("member-expel-timeout"), "15")
                // The user of a member that fetches missing writes has `caching_sha2_password`.
                .set(&group("recovery-get-public-key"), "ON")
        };
        let members = [0, 1, 2]
            .map(options)
            .map(|options| thread::spawn(move || Server::my_sql(&options)))
            .map(|member| {
                member
                    .join()
                    .map_err(|_| anyhow::anyhow!("a start panicked"))?
            });
        let members = members.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let group = Self { members };
        for member in &group.members {
            // Each member has created the same user for itself, which the others need not repeat.
            member.query("RESET BINARY LOGS AND GTIDS")?;
            member.query(
                "CHANGE REPLICATION SOURCE TO SOURCE_USER = 'idem', SOURCE_PASSWORD = 'secret' \
                 FOR CHANNEL 'group_replication_recovery'",
            )?;
        }
        let [first, others @ ..] = &*group.members else {
            bail!("a group has members");
        };
        first.query("SET GLOBAL group_replication_bootstrap_group = ON")?;
        first.query(JOIN)?;
        first.query("SET GLOBAL group_replication_bootstrap_group = OFF")?;
        for member in others {
            member.query(JOIN)?;
        }
        group.wait_until_complete()?;
        Ok(group)
    }

    /// The three servers.
    pub fn members(&self) -> &[Server] {
        &self.members
    }

    /// Waits until one of the members other than this one is a primary, and returns its index.
    ///
    /// # Errors
    ///
    /// None became a primary in time.
    pub fn other_primary(&self, gone: usize) -> anyhow::Result<usize> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        loop {
            for (index, member) in self.members.iter().enumerate() {
                let writes = || member.query("SELECT @@super_read_only");
                if index != gone
                    && member.query(SELF).is_ok_and(|it| it == "ONLINE PRIMARY")
                    && writes().is_ok_and(|it| it == "0")
                {
                    return Ok(index);
                }
            }
            if Instant::now() > deadline {
                bail!("the group elected no primary in time");
            }
            sleep(POLL);
        }
    }

    /// Lets a member that runs again join its group again, and waits until all members are online.
    ///
    /// # Errors
    ///
    /// The member does not run, or the members did not agree in time.
    pub fn rejoin(&self, member: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        let member = &self.members[member];
        loop {
            // The group refuses a member for as long as it has not noticed that it was gone.
            let refused = match member.query(SELF) {
                Ok(state) if state.starts_with("ONLINE") || state.starts_with("RECOVERING") => {
                    break;
                }
                Ok(state) if state.starts_with("ERROR") => {
                    member.query("STOP GROUP_REPLICATION")?;
                    continue;
                }
                _ => member.query(JOIN),
            };
            if Instant::now() > deadline {
                refused.context("a member cannot join its group again")?;
            }
            sleep(POLL);
        }
        self.wait_until_complete()
    }

    /// Waits until each of the three members finds all of them online.
    ///
    /// # Errors
    ///
    /// They did not agree in time.
    pub fn wait_until_complete(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        for (index, member) in self.members.iter().enumerate() {
            loop {
                let online = member.query(ONLINE);
                if online.as_ref().is_ok_and(|it| it == "3") {
                    break;
                }
                if Instant::now() > deadline {
                    let state = member.query(SELF);
                    bail!(
                        "member {index} of the group is not complete in time: {online:?}, {state:?}"
                    );
                }
                sleep(POLL);
            }
        }
        Ok(())
    }
}
