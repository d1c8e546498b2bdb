//! Clients near backends, and backends that are clients.

use anyhow::{Result, ensure};
use lb_tests::{
    client::{Connection, get},
    topology::{Shape, VIPS},
    world::{World, vip_address},
};

/// A client on the backend's network. The backend's way back leads past the balancer unless it has a route.
pub fn client_on_the_backends_network() -> Result<()> {
    let world = World::new(Shape::Lan, 2, 1)?;
    let [backend, client] = [&world.bed.backends[0], &world.bed.backends[1]];
    backend.netns.ip(&format!(
        "route add {}/32 via 10.1.0.1\nroute add {}/128 via 2001:db8:2::1",
        client.v4, client.v6
    ))?;
    for vip in VIPS {
        client.netns.block_on(async move {
            let mut connection = Connection::open(vip_address(vip)).await?;
            let reply = connection.get("/").await?;
            ensure!(reply.backend == "b0" && reply.client == connection.local());
            connection.download(200_000).await?;
            Ok(())
        })?;
    }
    Ok(())
}

/// A backend that uses the service itself is served by another.
pub fn backend_as_client() -> Result<()> {
    let world = World::new(Shape::Routed, 2, 2)?;
    for vip in VIPS {
        let service = vip_address(vip).to_string();
        world
            .agent
            .ok(&["backend", "drain", &service, &world.backend(0, vip)])?;
        let reply = world.bed.backends[0]
            .netns
            .block_on(get(vip_address(vip), "/"))?;
        ensure!(reply.backend == "b1", "{reply:?}");
        ensure!(reply.client.ip() == world.bed.backends[0].address(vip, 0).ip());
    }
    Ok(())
}
