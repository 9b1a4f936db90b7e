// dynalite, an emulator of DynamoDB whose conditional writes exclude each other. It stops when its input ends.
//
// Each line of the input is a number of milliseconds by which the clock in its answers differs from that of the machine.
const dynalite = require('dynalite')
const readline = require('readline')

let offset = 0
const server = dynalite({ createTableMs: 0, deleteTableMs: 0, updateTableMs: 0 })
const [answer] = server.listeners('request')
server.removeAllListeners('request')
server.on('request', (request, response) => {
  const end = response.end
  response.end = function (...rest) {
    response.setHeader('Date', new Date(Date.now() + offset).toUTCString())
    return end.apply(response, rest)
  }
  const target = request.headers['x-amz-target'] || ''
  if (!target.endsWith('.UpdateTimeToLive')) return answer(request, response)
  // dynalite does not know this request, and deletes nothing by itself.
  request.resume()
  request.on('end', () => {
    response.setHeader('Content-Type', 'application/x-amz-json-1.0')
    response.end('{}')
  })
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))

const lines = readline.createInterface({ input: process.stdin })
lines.on('line', line => {
  offset = Number(line)
  console.log('set')
})
lines.on('close', () => process.exit())
