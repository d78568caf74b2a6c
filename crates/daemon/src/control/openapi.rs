//! The API's own description, at `/v1/openapi.json`.

use super::{casts, directory, events, jobs, operate, routes, rumours, runs};
use axum::Json;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Phalanx",
        description = "The control API of a Phalanx daemon: who is in the cluster, what happens, and how to change it.",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        routes::status,
        routes::members,
        routes::attributes,
        routes::set_attribute,
        routes::remove_attribute,
        routes::services,
        routes::offer,
        routes::withdraw,
        routes::leave,
        routes::healthy,
        routes::ready,
        events::events,
        directory::directory,
        directory::changes,
        casts::cast,
        casts::casts,
        casts::seats,
        casts::repair,
        rumours::tell,
        rumours::ask,
        rumours::answer,
        rumours::round_trip,
        rumours::round_trips,
        rumours::force_leave,
        operate::keys,
        operate::all_keys,
        operate::change_keys,
        operate::faults,
        operate::inject,
        operate::heal_all,
        operate::heal,
        operate::census,
        operate::zones,
        operate::zone,
        operate::segments,
        operate::federation,
        operate::metrics,
        jobs::list,
        jobs::view,
        jobs::enter,
        runs::run,
        runs::list,
        runs::show,
        runs::end,
        runs::signal,
        runs::slots,
        runs::drain,
        runs::undrain,
        runs::managers,
        runs::move_replica,
    )
)]
struct Api;

pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Api::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_described() {
        let api = Api::openapi();
        let described: Vec<&String> = api.paths.paths.keys().collect();
        for at in super::super::routes::PATHS {
            assert!(described.iter().any(|d| *d == at), "{at} is not in the description");
        }
        assert_eq!(described.len(), super::super::routes::PATHS.len() + 1, "only /readyz is described beside them");
    }
}
