//! ST-2: daemons whose seats are kept in a real etcd.

use phalanx_client::casts::To;
use phalanx_cluster::Cluster;
use phalanx_cluster::etcd::Etcd;
use std::collections::BTreeSet;

fn names(cluster: &Cluster, node: usize) -> BTreeSet<String> {
    cluster.node(node).client().seats().expect("it answers").into_iter().map(|s| s.name).collect()
}

/// Daemons sit where etcd says, cast while it is away, and give their seats back when it is there again.
#[test]
fn st_2_daemons_sit_where_an_etcd_says_and_cast_while_it_is_away() {
    let Some(mut etcd) = Etcd::running() else { return };
    let mut cluster = Cluster::empty();
    let config = cluster.write("config.toml", &format!("cast_directory = \"etcd:{}\"\n", etcd.url()));
    (0..4).for_each(|_| _ = cluster.add(&["--config", &config]));
    cluster.wait_for_one_view();
    let seats = |node: &phalanx_cluster::Node| node.client().seats().expect("it answers");
    cluster.wait_until("four seats", |node| {
        let numbers: Vec<u32> = seats(node).iter().map(|s| s.seat).collect();
        numbers == [0, 1, 2, 3]
    });
    let cast = |cluster: &Cluster, node: usize| cluster.node(node).client().cast(&To::All, "", b"news".to_vec());
    assert_eq!(cast(&cluster, 2).unwrap().reached, 4);
    etcd.kill();
    assert_eq!(cast(&cluster, 1).unwrap().reached, 4, "etcd is away");
    cluster.kill(3);
    cluster.wait_until("three are left", |node| seats(node).len() == 3);
    assert_eq!(cast(&cluster, 0).unwrap().reached, 3, "etcd is away, and somebody is dead");
    etcd.start();
    // Whoever comes gets a seat when etcd is back.
    let newcomer = cluster.add(&["--config", &config]);
    cluster.wait_for_one_view();
    cluster.wait_until("a seat for who came", |node| seats(node).len() == 4);
    assert_eq!(cast(&cluster, newcomer).unwrap().reached, 4);
    assert_eq!(names(&cluster, newcomer), names(&cluster, 0));
}
