//! What is told and asked among all members.

use crate::events::Lines;
use crate::{Client, Error, escaped};
use hyper::Method;
use phalanx_api::path;
use phalanx_api::rumours::{Answer, Question, Tale};

impl Client {
    /// Tells all members something.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn tell(&self, name: &str, payload: &str) -> Result<(), Error> {
        let tale = Tale { name: name.to_owned(), payload: payload.to_owned() };
        let body = serde_json::to_string(&tale).map_err(|e| Error::Answer(e.to_string()))?;
        self.connect().await?.act(Method::POST, path::EVENT, body).await
    }

    /// Asks all members something; answers come as they arrive, until their time is over.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn ask(&self, question: &Question) -> Result<Answers, Error> {
        let body = serde_json::to_string(question).map_err(|e| Error::Answer(e.to_string()))?;
        let answer = self.connect().await?.ask(Method::POST, path::QUERY, body.into(), None).await?;
        Ok(Answers(Lines::new(answer.into_body())))
    }

    /// This node's answer to a question, once; `query` is what the event says.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn reply(&self, query: &str, payload: &str) -> Result<(), Error> {
        let path = format!("{}/{}", path::QUERY, escaped(query));
        self.connect().await?.act(Method::POST, &path, payload.to_owned()).await
    }
}

/// Answers to a question.
#[derive(Debug)]
pub struct Answers(Lines);

impl Answers {
    /// The next answer; `None` when their time is over. What has no payload says that a member has heard the question.
    ///
    /// # Errors
    /// When it makes no sense, or the daemon ended.
    pub async fn next(&mut self) -> Result<Option<Answer>, Error> {
        self.0.next().await
    }
}
