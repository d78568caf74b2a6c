//! The lines that MPICH 4.0.2 and 5.0.2 wrote to their own launchers, as they were recorded.

use super::*;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> (Vec<Said>, Result<(), Nonsense>) {
    let (mut reader, mut said) = (Reader::default(), Vec::new());
    let read = reader.read(bytes, &mut said);
    (said, read)
}

/// `MPI_Init` and `MPI_Finalize` of a rank of two.
const RANK: &str = "\
cmd=init pmi_version=1 pmi_subversion=1
cmd=get_maxes
cmd=get_appnum
cmd=get_my_kvsname
cmd=get kvsname=kvs_18624_0_433826178_vm key=PMI_process_mapping
cmd=barrier_in
cmd=put kvsname=kvs_18624_0_433826178_vm key=-bcast-1-0 value=2F6465762F73686D2F6D706963685F736861725F746D70326A6B4E724F
cmd=barrier_in
cmd=put kvsname=kvs_19397_0_102635605_vm key=-allgather-1-0-seg-1/9 value=20770E5A7150D3CD3B[2]637577CC2B3200
cmd=get kvsname=kvs_19397_0_102635605_vm key=-allgather-1-0-seg-1/9
cmd=finalize
";

fn rank() -> Vec<Said> {
    let (old, new) = ("kvs_18624_0_433826178_vm".to_owned(), "kvs_19397_0_102635605_vm".to_owned());
    let segment = "-allgather-1-0-seg-1/9".to_owned();
    vec![
        Said::Init { version: 1 },
        Said::Maxes,
        Said::Appnum,
        Said::KvsName,
        Said::Get { kvsname: old.clone(), key: "PMI_process_mapping".into() },
        Said::Barrier,
        Said::Put {
            kvsname: old,
            key: "-bcast-1-0".into(),
            value: "2F6465762F73686D2F6D706963685F736861725F746D70326A6B4E724F".into(),
        },
        Said::Barrier,
        Said::Put { kvsname: new.clone(), key: segment.clone(), value: "20770E5A7150D3CD3B[2]637577CC2B3200".into() },
        Said::Get { kvsname: new, key: segment },
        Said::Finalize,
    ]
}

/// `MPI_Comm_spawn`, and one of three programs.
const SPAWN: &str = "\
mcmd=spawn
nprocs=2
execname=./hello
totspawns=1
spawnssofar=1
argcnt=0
preput_num=1
preput_key_0=PARENT_ROOT_PORT_NAME
preput_val_0=tag#1$connentry#20770E5A7150D3CD3B[2]637577CC$
info_num=0
endcmd
mcmd=spawn
nprocs=1
execname=b
totspawns=3
spawnssofar=2
arg1=-v
arg2=two words = one
argcnt=2
preput_num=0
info_num=1
info_key_0=wdir
info_val_0=/tmp
endcmd
";

#[test]
fn what_mpich_says_is_understood() {
    assert_eq!(read(RANK.as_bytes()), (rank(), Ok(())));
    let (said, read) = read(SPAWN.as_bytes());
    assert_eq!(read, Ok(()));
    let first = Spawn {
        ranks: 2,
        program: "./hello".into(),
        of: 1,
        nth: 1,
        puts: vec![("PARENT_ROOT_PORT_NAME".into(), "tag#1$connentry#20770E5A7150D3CD3B[2]637577CC$".into())],
        ..Spawn::default()
    };
    let second = Spawn {
        ranks: 1,
        program: "b".into(),
        args: vec!["-v".into(), "two words = one".into()],
        of: 3,
        nth: 2,
        hints: vec![("wdir".into(), "/tmp".into())],
        puts: Vec::new(),
    };
    assert_eq!(said, [Said::Spawn(first), Said::Spawn(second)]);
}

#[test]
fn the_rest_of_what_there_is() {
    let lines = "cmd=initack pmiid=3\ncmd=get_universe_size\ncmd=abort exitcode=7\ncmd=abort\n\
        cmd=publish_name service=serv ice port=port#1 x=2$\ncmd=lookup_name service=serv ice\ncmd=unpublish_name service=a\n";
    let service = || "serv ice".to_owned();
    let said = [
        Said::Initack { rank: 3 },
        Said::Universe,
        Said::Abort { status: 7 },
        Said::Abort { status: 1 },
        Said::Publish { service: service(), port: "port#1 x=2$".into() },
        Said::Lookup { service: service() },
        Said::Unpublish { service: "a".into() },
    ];
    assert_eq!(read(lines.as_bytes()), (said.to_vec(), Ok(())));
}

#[test]
fn lines_may_come_in_any_pieces() {
    let all = format!("{RANK}{SPAWN}{RANK}");
    let (whole, _) = read(all.as_bytes());
    for piece in [1, 7, 100] {
        let (mut reader, mut said) = (Reader::default(), Vec::new());
        all.as_bytes().chunks(piece).for_each(|bytes| reader.read(bytes, &mut said).unwrap());
        assert_eq!((said.len(), &said), (24, &whole));
        assert!(reader.unread.is_empty());
    }
}

#[test]
fn what_makes_no_sense_ends_with_a_reason() {
    let why = |bytes: &[u8]| read(bytes).1.unwrap_err();
    assert_eq!(why(&[b'x'; LINE_MAX + 1]), Nonsense::TooLong(LINE_MAX + 1), "a line without end");
    let block = [b"mcmd=spawn\n".as_slice(), &[b'x'; BLOCK_MAX]].concat();
    assert_eq!(why(&block), Nonsense::TooLong(block.len()));
    assert_eq!(why(b"cmd=put \xff\n"), Nonsense::NotText);
    for line in [
        "cmd=fence\n",
        "GET / HTTP/1.1\n",
        "cmd=put kvsname=k key=a\n",
        "cmd=initack pmiid=-1\n",
        "cmd=init pmi_version=99999999999\n",
        "mcmd=spawn\nnprocs=0\nexecname=a\nendcmd\n",
        "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nspawnssofar=2\nendcmd\n",
        "mcmd=spawn\nnprocs=1\nexecname=a\ninfo_val_0=a\nendcmd\n",
        "mcmd=other\nendcmd\n",
    ] {
        assert!(matches!(why(line.as_bytes()), Nonsense::Unknown(_)), "{line}");
    }
    let said = read(b"cmd=get_maxes\ncmd=what\ncmd=get_maxes\n");
    assert_eq!(said.0, [Said::Maxes], "what came before it was said");
    assert!(why(b"cmd=a\x1b[2J\n").to_string().contains("`cmd=a [2J `"), "people's terminals are left alone");
}

#[test]
fn replies_are_what_mpich_reads() {
    let lines = |reply: Reply| reply.lines();
    assert_eq!(lines(Reply::Init { fits: true }), "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    assert_eq!(lines(Reply::Init { fits: false }), "cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1\n");
    assert_eq!(lines(Reply::Maxes), "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n");
    assert_eq!(lines(Reply::KvsName("a_1".into())), "cmd=my_kvsname rc=0 kvsname=a_1\n");
    assert_eq!(lines(Reply::Got(Some("a b".into()))), "cmd=get_result rc=0 msg=success value=a b\n");
    assert_eq!(lines(Reply::Got(None)), "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
    assert_eq!(lines(Reply::Barrier), "cmd=barrier_out rc=0 msg=success\n");
    assert_eq!(lines(Reply::Spawned(Err("not yet".into()))), "cmd=spawn_result rc=1 msg=not_yet\n");
    let welcome = "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=3\ncmd=set debug=0\n";
    assert_eq!(lines(Reply::Welcome { size: 4, rank: 3 }), welcome);
}

proptest! {
    #[test]
    fn any_bytes_are_understood_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..1200) {
        let mut lines = format!("{RANK}{SPAWN}").into_bytes();
        let at = at.min(lines.len());
        lines.splice(at..(at + bytes.len()).min(lines.len()), bytes);
        let _ = read(&lines);
    }
}
