//! Jobs and their views.

use super::Office;
use super::routes::Refused;
use crate::jobs::JobError;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use phalanx_api::Refusal;
use phalanx_api::jobs::{Fold, Job, JobView, JobWanted};

impl From<JobError> for Refused {
    fn from(why: JobError) -> Self {
        match why {
            JobError::Rumour(why) => why.into(),
            JobError::Ended(why) => why.into(),
            JobError::Name(_) | JobError::Tree(_) => Self::new(StatusCode::BAD_REQUEST, why),
            JobError::Differs { .. } => Self::new(StatusCode::CONFLICT, why),
            JobError::Missing(_) | JobError::Early(_) => Self::new(StatusCode::NOT_FOUND, why),
            JobError::Silent(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, why),
            JobError::Start { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, why),
        }
    }
}

/// Jobs of which this node knows
#[utoipa::path(get, path = phalanx_api::path::JOBS, responses((status = 200, body = [Job])))]
pub(super) async fn list(State(office): State<Office>) -> Result<Json<Vec<Job>>, Refused> {
    Ok(Json(office.jobs.list().await?))
}

/// The view of a job, wherever its tasks are
#[utoipa::path(get, path = "/v1/jobs/{name}", params(("name" = String, Path, description = "of the job")), responses((status = 200, body = JobView), (status = 404, body = Refusal)))]
pub(super) async fn view(State(office): State<Office>, Path(name): Path<String>) -> Result<Json<JobView>, Refused> {
    Ok(Json(office.jobs.view(&name).await?))
}

/// Where a task of the job connects on this node; the job begins with its first task
#[utoipa::path(post, path = "/v1/jobs/{name}", params(("name" = String, Path, description = "of the job")), request_body = JobWanted, responses((status = 200, body = Fold), (status = 400, body = Refusal), (status = 409, body = Refusal)))]
pub(super) async fn enter(
    State(office): State<Office>,
    Path(name): Path<String>,
    Json(wanted): Json<JobWanted>,
) -> Result<Json<Fold>, Refused> {
    let socket = office.jobs.enter(&name, &wanted).await?;
    Ok(Json(Fold { socket: socket.to_string_lossy().into_owned() }))
}
