"""A chat by the client that openapi-python-client wrote, whose package is `harmonium_client`."""

import os

from harmonium_client import AuthenticatedClient
from harmonium_client.api.chat_completions import create_chat_completion
from harmonium_client.api.messages import create_message
from harmonium_client.api.responses import create_response
from harmonium_client.models import (
    ChatCompletion,
    ChatRequest,
    Message,
    MessagesRequest,
    ResponseObject,
    ResponseRequest,
    UserMessage,
    UserTurn,
)

MODEL = "gpt-oss-20b"

client = AuthenticatedClient(os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"])

chat = create_chat_completion.sync(
    client=client, body=ChatRequest(model=MODEL, messages=[UserMessage("user", "Hi")])
)
assert isinstance(chat, ChatCompletion), chat
print(chat.choices[0].message.content)

response = create_response.sync(client=client, body=ResponseRequest(model=MODEL, input_="Hi"))
assert isinstance(response, ResponseObject), response
print(response.output[-1].content[0].text)

message = create_message.sync(
    client=client,
    body=MessagesRequest(model=MODEL, max_tokens=99, messages=[UserTurn("user", "Hi")]),
)
assert isinstance(message, Message), message
print(message.content[-1].text)
