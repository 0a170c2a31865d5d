// Calls every method of the official npm client that our routes are for, and prints what came back as one JSON object.
// Arguments: the base URL of a server whose model says JSON, and of one whose model calls a function.
import OpenAI from "openai";

const [textUrl, callUrl] = process.argv.slice(2);
const open = (baseURL) => new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const client = open(textUrl);
const model = "org/tiny";
const messages = [{ role: "user", content: "hi" }];
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};
const seen = {};

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

seen.models = (await collect(await client.models.list())).map((found) => found.id);
seen.model = (await client.models.retrieve(model)).id;

seen.completion = (await client.completions.create({ model, prompt: "a", max_tokens: 40 })).choices[0].text;
const completionChunks = await collect(await client.completions.create({ model, prompt: "a", max_tokens: 40, stream: true }));
seen.completionStreamed = completionChunks.map((chunk) => chunk.choices[0].text).join("");

const chat = await client.chat.completions.create({ model, messages });
seen.chat = chat.choices[0].message.content;
seen.usage = chat.usage;
const options = { stream: true, stream_options: { include_usage: true } };
const chatChunks = await collect(await client.chat.completions.create({ model, messages, ...options }));
seen.chatStreamed = chatChunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
seen.usageStreamed = chatChunks.at(-1).usage;
const runner = client.chat.completions.stream({ model, messages });
seen.chatHelper = (await runner.finalChatCompletion()).choices[0].message.content;
const schema = { type: "json_schema", json_schema: { name: "weather", schema: parameters } };
seen.chatParsed = JSON.parse(
  (await client.chat.completions.parse({ model, messages, response_format: schema })).choices[0].message.content,
);

// The client asks for base64 and shows numbers.
seen.embedding = (await client.embeddings.create({ model, input: "a" })).data[0].embedding;
const numbers = await client.embeddings.create({ model, input: "a", encoding_format: "float" });
seen.embeddingNumbers = numbers.data[0].embedding;

const response = await client.responses.create({ model, input: "hi" });
seen.response = response.output_text;
seen.retrieved = (await client.responses.retrieve(response.id)).output_text;
seen.inputItems = (await collect(await client.responses.inputItems.list(response.id))).map((item) => item.type);
const events = await collect(await client.responses.create({ model, input: "hi", stream: true }));
seen.responseEvents = [...new Set(events.map((event) => event.type))];
seen.responseHelper = (await client.responses.stream({ model, input: "hi" }).finalResponse()).output_text;
await client.responses.delete(response.id);
seen.deleted = await client.responses.retrieve(response.id).catch((error) => [error.constructor.name, error.code]);
seen.refused = await client.chat.completions
  .create({ model, messages, temperature: -1 })
  .catch((error) => [error.constructor.name, error.status, error.param]);
const raw = await client.chat.completions
  .create({ model, messages }, { headers: { "X-Request-Id": "mine" } })
  .withResponse();
seen.requestId = [raw.request_id, raw.response.headers.get("x-request-id")];

const aborted = await client.chat.completions.create({ model, messages, stream: true });
for await (const chunk of aborted) {
  seen.firstRole = chunk.choices[0].delta.role;
  break;
}

const caller = open(callUrl);
const tools = [{ type: "function", function: { name: "Weather", parameters } }];
const called = await caller.chat.completions.create({ model, messages, tools });
seen.call = called.choices[0].message.tool_calls.map((call) => call.function);
const streamedCall = await caller.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
seen.callStreamed = streamedCall.choices[0].message.tool_calls.map(({ function: { name, arguments: text } }) => ({
  name,
  arguments: text,
}));
const flat = [{ type: "function", name: "Weather", parameters, strict: true }];
const final = await caller.responses.stream({ model, input: "hi", tools: flat }).finalResponse();
seen.responseCall = final.output.map(({ name, arguments: text }) => ({ name, arguments: text }));

console.log(JSON.stringify(seen));
