//! Offers a service, finds all that are like it, and answers questions about it. Blocking: no runtime needed.
//!
//! `cargo run -p phalanx-client --example service NAME PORT [QUESTIONS]`: ends after so many questions were answered. Ask with
//! `phalanx query health`.

use phalanx_client::api::{Offer, Service, What};
use phalanx_client::blocking::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err("usage: service NAME PORT [QUESTIONS]".into());
    };
    let most = arguments.next().map_or(Ok(usize::MAX), |n| n.parse())?;
    let client = Client::from_environment();
    let port = port.parse()?;
    client.offer(&Offer { name: name.clone(), port: Some(port), ..Offer::default() })?;
    for Service { node, addr, .. } in client.services(Some(&format!("name == {name}")))? {
        println!("{name} at {node}, {addr:?}");
    }
    let questions = client.events(Some(0)).filter_map(|event| match event.map(|e| e.what) {
        Ok(What::Query { query, name, .. }) if name == "health" => Some(Ok(query)),
        Ok(_) => None,
        Err(e) => Some(Err(e)),
    });
    for query in questions.take(most) {
        client.reply(&query?, "fine")?;
    }
    Ok(client.withdraw(&name, Some(port))?)
}
