import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { newSandbox, until, send, startCounter } from './kit.mjs'

// echoSource answers with what it was asked: method, path, headers, body.
const echoSource = `
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/raw":
            out = body
        else:
            out = json.dumps({"method": self.command, "path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}, "length": len(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    do_GET = do_POST = do_PUT = do_DELETE = answer
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
`

async function startEcho(sandbox, address, port, headers) {
  await sandbox.files.write('/home/user/echo.py', echoSource)
  await sandbox.commands.run(`python3 /home/user/echo.py ${address} ${port}`, { background: true, timeoutMs: 0 })
  await until(`port ${port} answers`, async () => (await send(sandbox.getHost(port), { headers })).status === 200)
}

test('a server is reached by the name getHost gives', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await startEcho(sandbox, '0.0.0.0', 3000)
  const answer = await send(sandbox.getHost(3000), {
    path: '/some/path?q=1&q=%20x',
    method: 'PUT',
    headers: { 'x-custom': 'yes', 'x-api-key': process.env.E2B_API_KEY },
    body: 'twelve bytes',
  })
  const seen = answer.json()
  assert.equal(seen.method, 'PUT')
  assert.equal(seen.path, '/some/path?q=1&q=%20x')
  assert.equal(seen.length, 12)
  assert.equal(seen.headers['x-custom'], 'yes')
  assert.equal(seen.headers.host, sandbox.getHost(3000))
  assert.equal(seen.headers['x-api-key'], undefined, 'the API key stays outside')
})

test('a large body passes both ways', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await startEcho(sandbox, '0.0.0.0', 3000)
  const body = randomBytes(16 << 20)
  const answer = await send(sandbox.getHost(3000), { path: '/raw', method: 'POST', body })
  assert.equal(answer.status, 200)
  assert.ok(body.equals(answer.bytes))
})

test('a server bound to localhost is reached too', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await startEcho(sandbox, '127.0.0.1', 5173)
  assert.equal((await send(sandbox.getHost(5173))).json().method, 'GET')
})

test('a port that is not open is said to be so', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const answer = await send(sandbox.getHost(4321))
  assert.equal(answer.status, 502)
  assert.match(answer.headers['content-type'], /application\/json/)
  assert.deepEqual(answer.json(), {
    sandboxId: sandbox.sandboxId,
    message: 'The sandbox is running but port is not open',
    port: 4321,
    code: 502,
  })
  const page = await send(sandbox.getHost(4321), {
    headers: { 'user-agent': 'Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0', accept: 'text/html' },
  })
  assert.equal(page.status, 502)
  assert.match(page.headers['content-type'], /text\/html/)
})

test('a sandbox that does not exist is said to be so', async () => {
  const answer = await send('3000-i00000000000000000000.e2b.app')
  assert.equal(answer.status, 502)
  assert.equal(answer.json().message, 'The sandbox was not found')
})

test('ports of a sandbox without public traffic need its token', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, network: { allowPublicTraffic: false } })
  assert.ok(sandbox.trafficAccessToken)
  const headers = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
  await startEcho(sandbox, '0.0.0.0', 3000, headers)
  assert.equal((await send(sandbox.getHost(3000))).status, 403)
  assert.equal((await send(sandbox.getHost(3000), { headers: { 'e2b-traffic-access-token': 'wrong' } })).status, 403)
  const seen = (await send(sandbox.getHost(3000), { headers })).json()
  assert.equal(seen.headers['e2b-traffic-access-token'], undefined, 'the token stays outside')
})

test('services of the guest are not open to everyone', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const host = sandbox.getHost(49983)
  assert.equal((await send(host, { path: '/health' })).status, 204)
  assert.equal((await send(host, { path: '/envs' })).status, 401)
  assert.equal((await send(host, { path: '/init', method: 'POST', body: '{}' })).status, 404)
})

test('the internet is open by default and shut when asked', async () => {
  const [open, shut] = await Promise.all([
    newSandbox({ timeoutMs: 600_000 }),
    newSandbox({ timeoutMs: 600_000, allowInternetAccess: false }),
  ])
  // The package mirror that the template came from is reachable wherever the tests run.
  const ask = `curl -sS -o /dev/null -w '%{http_code}' --max-time 20 "$(grep -rhoE 'https?://[^ ]+' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n1)"`
  assert.match((await open.commands.run(ask)).stdout, /^[1-4]\d\d$/)
  await assert.rejects(shut.commands.run(ask), /./)
  for (const target of ['169.254.169.254', '10.0.0.1', '192.0.0.1']) {
    await assert.rejects(open.commands.run(`curl -sS --max-time 3 http://${target}/`), /./, `${target} is out of reach`)
  }
})

test('traffic goes on through a sandbox that was paused meanwhile', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  const { word } = await startCounter(sandbox)
  for (let i = 0; i < 3; i++) {
    await sandbox.pause()
    const answer = await send(sandbox.getHost(8000))
    assert.equal(answer.status, 200)
    assert.ok(answer.text.startsWith(word))
  }
})
