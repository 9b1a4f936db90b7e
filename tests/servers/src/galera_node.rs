//! Start of one node of Galera.

use std::ffi::OsString;
use std::path::Path;

/// Query that only a node with the data of the cluster answers with `Synced`. A node without a majority refuses it.
pub(crate) const PROBE: &str = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_local_state_comment'";

/// Setting that makes a node create the cluster at its first start.
pub(crate) const FIRST: &str = "wsrep-new-cluster";

/// Launcher of a node. Its arguments are the server's command.
///
/// A node that was killed does not know its position in the history of writes, and would copy all data. With
/// `--wsrep-recover` the server reads the position from its storage and ends; the node then needs only the writes since
/// (IST). The node that creates the cluster does so once: at its next start it joins.
const LAUNCHER: &str = r#"server=$1
shift
data= first=
for argument; do
    case $argument in --datadir=*) data=${argument#--datadir=};; esac
    shift
    case $argument in
        --wsrep-new-cluster=*) first=$argument;;
        *) set -- "$@" "$argument";;
    esac
done
if [ -e "$data/grastate.dat" ]; then
    position=$("$server" "$@" --wsrep-recover 2>&1 | sed -n 's/.*Recovered position: *//p')
    case $position in ''|00000000-0000-0000-0000-000000000000:*) ;;
        *) set -- "$@" "--wsrep-start-position=$position";;
    esac
elif [ -n "$first" ]; then
    set -- "$@" --wsrep-new-cluster
fi
exec "$server" "$@"
"#;

pub(crate) fn configure(directory: &Path) -> anyhow::Result<()> {
    std::fs::write(directory.join("launcher"), LAUNCHER)?;
    Ok(())
}

pub(crate) fn launcher(directory: &Path) -> Vec<OsString> {
    vec!["sh".into(), directory.join("launcher").into()]
}

pub(crate) fn is_first(settings: &[(String, String)]) -> bool {
    settings.iter().any(|(name, _)| name == FIRST)
}
