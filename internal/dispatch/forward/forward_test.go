package forward_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"
	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/dev/erc2771"
	"github.com/rollcall-dev/rollcall/internal/dispatch/forward"
	"github.com/rollcall-dev/rollcall/internal/evm"
)

// forwardRequestData is the struct of the contract's execute, for accounts/abi.
type forwardRequestData struct {
	From      common.Address
	To        common.Address
	Value     *big.Int
	Gas       *big.Int
	Deadline  *big.Int
	Data      []byte
	Signature []byte
}

// decode decodes the data of a call of execute with go-ethereum's decoder and the interface that the compiler made.
func decode(t testing.TB, data []byte) forwardRequestData {
	t.Helper()
	contract := erc2771.ForwarderABI()
	method, err := contract.MethodById(data)
	require.NoError(t, err)
	require.Equal(t, "execute", method.Name)
	values, err := method.Inputs.Unpack(data[4:])
	require.NoError(t, err)
	var args struct{ Request forwardRequestData }
	require.NoError(t, method.Inputs.Copy(&args, values))
	return args.Request
}

var (
	testDomain = forward.Domain{Name: "Forwarder", Version: "1", ChainID: 1337, VerifyingContract: common.Address{0xf0}}
	testKey    = mustKey("b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291")
	testSigner = crypto.PubkeyToAddress(testKey.PublicKey)
)

func mustKey(text string) *ecdsa.PrivateKey {
	key, err := crypto.HexToECDSA(text)
	if err != nil {
		panic(err)
	}
	return key
}

func validRequest(t testing.TB) *forward.Request {
	t.Helper()
	r := &forward.Request{
		From: testSigner, To: common.Address{2}, Value: big.NewInt(3), Gas: 4, Nonce: big.NewInt(5), Deadline: 6,
		Data: []byte("seven"),
	}
	sign(t, testKey, testDomain, r)
	return r
}

func TestVerify_MalformedSignature_SignatureError(t *testing.T) {
	t.Parallel()
	valid := validRequest(t).Signature
	set := func(i int, b byte) func([]byte) []byte {
		return func(s []byte) []byte {
			s[i] = b
			return s
		}
	}
	fill := func(from, to int, b byte) func([]byte) []byte {
		return func(s []byte) []byte {
			copy(s[from:to], bytes.Repeat([]byte{b}, to-from))
			return s
		}
	}
	for name, test := range map[string]struct {
		change func([]byte) []byte
		says   string
	}{
		"none":              {func([]byte) []byte { return nil }, "has 0 bytes"},
		"short":             {func(s []byte) []byte { return s[:63] }, "has 63 bytes"},
		"long":              {func(s []byte) []byte { return append(s, 0) }, "has 66 bytes"},
		"v of 2":            {set(64, 2), "has v 2"},
		"v of 26":           {set(64, 26), "has v 26"},
		"v of 29":           {set(64, 29), "has v 29"},
		"v of a chain id":   {set(64, 37), "has v 37"},
		"r of 0":            {fill(0, 32, 0), "out of range"},
		"s of 0":            {fill(32, 64, 0), "out of range"},
		"r above the order": {fill(0, 32, 0xff), "out of range"},
		"s above the order": {fill(32, 64, 0xff), "out of range"},
		"compact s of 0":    {func(s []byte) []byte { return fill(32, 64, 0)(s)[:64] }, "out of range"},
		"no point has r": {func(s []byte) []byte {
			copy(s, common.Hash{31: 5}.Bytes()) // 5^3+7 has no square root
			return s
		}, "recovers to no account"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := validRequest(t)
			require.NoError(t, forward.Verify(testDomain, r))
			r.Signature = test.change(bytes.Clone(valid))
			err := forward.Verify(testDomain, r)
			require.ErrorAs(t, err, new(*forward.SignatureError))
			require.ErrorIs(t, err, forward.ErrRefused)
			require.ErrorContains(t, err, test.says)
		})
	}
}

func TestRequest_FieldOutOfRange_FieldError(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*forward.Request){
		"value is above 2^256-1": func(r *forward.Request) { r.Value = new(big.Int).Add(maxUint256, common.Big1) },
		"value is negative":      func(r *forward.Request) { r.Value = big.NewInt(-1) },
		"nonce is above 2^256-1": func(r *forward.Request) { r.Nonce = new(big.Int).Add(maxUint256, common.Big1) },
		"nonce is negative":      func(r *forward.Request) { r.Nonce = big.NewInt(-1) },
		"deadline is above":      func(r *forward.Request) { r.Deadline = forward.MaxDeadline + 1 },
		"data has":               func(r *forward.Request) { r.Data = make([]byte, forward.MaxData+1) },
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			r := validRequest(t)
			change(r)
			f := open(t, &stub{})
			_, hashErr := forward.Hash(testDomain, r)
			_, calldataErr := forward.Calldata(r)
			_, transactionErr := f.Transaction(r)
			for _, err := range []error{
				r.Validate(), forward.Verify(testDomain, r), f.Verify(t.Context(), r, testDomain), hashErr, calldataErr, transactionErr,
			} {
				require.ErrorAs(t, err, new(*forward.FieldError))
				require.ErrorIs(t, err, forward.ErrRefused)
				require.ErrorContains(t, err, field)
			}
		})
	}
	r := validRequest(t)
	r.Value, r.Nonce, r.Deadline, r.Data = maxUint256, maxUint256, forward.MaxDeadline, make([]byte, forward.MaxData)
	sign(t, testKey, testDomain, r)
	require.NoError(t, forward.Verify(testDomain, r))
	r.Deadline++
	require.ErrorAs(t, forward.CheckDeadline(r, time.Now(), 0), new(*forward.FieldError))
}

// The largest transaction is below the limit of nodes.
func TestCalldata_LargestRequest_FitsInTransaction(t *testing.T) {
	t.Parallel()
	r := validRequest(t)
	r.Data = make([]byte, forward.MaxData)
	data, err := forward.Calldata(r)
	require.NoError(t, err)
	require.Less(t, len(data), 128<<10-300)
}

func TestHash_NilNumbers_AreZero(t *testing.T) {
	t.Parallel()
	zero := &forward.Request{Value: new(big.Int), Nonce: new(big.Int)}
	want, err := forward.Hash(testDomain, zero)
	require.NoError(t, err)
	got, err := forward.Hash(testDomain, &forward.Request{})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, forward.CheckNonce(&forward.Request{}, new(big.Int)))
}

func TestCheckDeadline_Margin(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 500)
	at := func(deadline uint64, margin time.Duration) error {
		return forward.CheckDeadline(&forward.Request{Deadline: deadline}, now, margin)
	}
	require.NoError(t, at(1_000_061, time.Minute))
	err := at(1_000_060, time.Minute) // 500 ns too early
	require.Equal(t, &forward.ExpiredError{Deadline: 1_000_060, Now: now, Margin: time.Minute}, err)
	require.ErrorIs(t, err, forward.ErrRefused)
	require.NoError(t, at(1_000_001, 0))
	require.Error(t, at(1_000_000, 0))
	require.Error(t, at(0, 0))
	require.NoError(t, at(forward.MaxDeadline, 1<<62))
}

func TestGas_Formula(t *testing.T) {
	t.Parallel()
	zeros, others := make([]byte, 10), bytes.Repeat([]byte{1}, 10)
	for name, test := range map[string]struct {
		r     forward.Request
		data  []byte
		base  uint64
		want  uint64
		fails bool
	}{
		"base":            {base: 60_000, want: 60_000},
		"no base":         {want: 21_000},
		"requested":       {r: forward.Request{Gas: 630}, base: 60_000, want: 60_000 + 630 + 10},
		"rounded up":      {r: forward.Request{Gas: 631}, base: 60_000, want: 60_000 + 631 + 11},
		"zeros":           {data: zeros, base: 60_000, want: 60_000 + 40},
		"others":          {data: others, base: 60_000, want: 60_000 + 160},
		"floor":           {data: others, base: 21_000, want: 21_000 + 400},
		"floor of zeros":  {data: zeros, base: 21_000, want: 21_000 + 100},
		"value":           {r: forward.Request{Value: big.NewInt(1)}, base: 60_000, want: 69_000},
		"value of 0":      {r: forward.Request{Value: new(big.Int)}, base: 60_000, want: 60_000},
		"data":            {r: forward.Request{Data: make([]byte, 33)}, base: 60_000, want: 60_000 + 36},
		"much data":       {r: forward.Request{Data: make([]byte, 32<<10)}, base: 60_000, want: 60_000 + 18<<10 + 8<<10},
		"too much":        {r: forward.Request{Gas: math.MaxUint64}, fails: true},
		"too much a part": {r: forward.Request{Gas: math.MaxUint64 / 2}, base: math.MaxUint64 / 2, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := forward.Gas(&test.r, test.data, test.base)
			if test.fails {
				require.ErrorAs(t, err, new(*forward.FieldError))
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

// stub is the nodes of a chain, with answers that the test sets by method.
type stub struct {
	chainID  uint64 // default: that of testDomain
	contract string // method that the answers are for; others get the answers of a healthy node
	answers  []any  // []byte or error, one for each node
	asked    map[string]int
	state    evm.State
}

func (s *stub) ChainID() uint64 {
	if s.chainID != 0 {
		return s.chainID
	}
	return testDomain.ChainID
}

func (s *stub) CallContract(_ context.Context, m evm.Message, state evm.State) []evm.CallAnswer {
	name := "isTrustedForwarder"
	contract := erc2771.ForwarderABI()
	if method, err := contract.MethodById(m.Data); err == nil {
		name = method.Name
	}
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	s.asked[name]++
	s.state = state
	answers := s.answers
	if name != s.contract {
		answers = []any{map[string][]byte{
			"eip712Domain": domainAnswer(testDomain), "nonces": word(5), "isTrustedForwarder": word(1),
		}[name]}
	}
	all := make([]evm.CallAnswer, len(answers))
	for i, a := range answers {
		all[i].Endpoint = fmt.Sprintf("node %d", i)
		switch a := a.(type) {
		case []byte:
			all[i].Data = a
		case error:
			all[i].Err = a
		}
	}
	return all
}

func word(n uint64) []byte { return common.BigToHash(new(big.Int).SetUint64(n)).Bytes() }

func domainAnswer(d forward.Domain, change ...func([]any)) []byte {
	values := []any{
		[1]byte{0x0f}, d.Name, d.Version, new(big.Int).SetUint64(d.ChainID), d.VerifyingContract, [32]byte{}, []*big.Int{},
	}
	for _, f := range change {
		f(values)
	}
	data, err := erc2771.ForwarderABI().Methods["eip712Domain"].Outputs.Pack(values...)
	if err != nil {
		panic(err)
	}
	return data
}

func open(t *testing.T, nodes forward.Nodes) *forward.Forwarder {
	t.Helper()
	f, err := forward.New(forward.Config{Nodes: nodes, Address: testDomain.VerifyingContract})
	require.NoError(t, err)
	require.Equal(t, testDomain.VerifyingContract, f.Address())
	return f
}

var (
	errDown  = &evm.TransportError{Endpoint: "x", Err: errors.New("down")}
	reverted = &evm.RevertError{Reason: "no"}
)

func TestNonce_NodesDisagree_UpperMedian(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answers []any
		want    uint64
	}{
		"one":                       {[]any{word(7)}, 7},
		"equal":                     {[]any{word(7), word(7), word(7)}, 7},
		"two, one lags":             {[]any{word(6), word(7)}, 7},
		"three, one lags":           {[]any{word(7), word(6), word(7)}, 7},
		"three, one is far too low": {[]any{word(0), word(7), word(7)}, 7},
		"three, one is too high":    {[]any{word(7), word(1 << 40), word(7)}, 7},
		"four, two lag":             {[]any{word(6), word(7), word(6), word(7)}, 7},
		"five, one high, one low":   {[]any{word(99), word(7), word(0), word(7), word(7)}, 7},
		"one answers":               {[]any{errDown, word(7), evm.ErrNoEndpoint}, 7},
		"no contract there yet":     {[]any{[]byte{}, word(7)}, 7},
		"malformed":                 {[]any{[]byte{1}, word(7), append(word(9), 0), reverted}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := &stub{contract: "nonces", answers: test.answers}
			got, err := open(t, nodes).Nonce(t.Context(), testSigner, evm.PendingState)
			require.NoError(t, err)
			require.Equal(t, test.want, got.Uint64())
			require.Equal(t, evm.PendingState, nodes.state)
		})
	}
	for name, answers := range map[string][]any{
		"none": {}, "all down": {errDown, evm.ErrNoEndpoint}, "no contract": {[]byte{}, reverted},
	} {
		_, err := open(t, &stub{contract: "nonces", answers: answers}).Nonce(t.Context(), testSigner, evm.LatestState)
		require.ErrorIs(t, err, forward.ErrUnavailable, name)
		require.NotErrorIs(t, err, forward.ErrRefused)
	}
}

func TestDomain_NodesAnswer_MajorityIsCached(t *testing.T) {
	t.Parallel()
	right := domainAnswer(testDomain)
	other := testDomain
	other.Name = "Evil"
	wrong := domainAnswer(other)
	for name, test := range map[string]struct {
		answers []any
		fails   error
	}{
		"one":               {answers: []any{right}},
		"two":               {answers: []any{right, right}},
		"one of three lies": {answers: []any{wrong, right, right}},
		"one answers":       {answers: []any{errDown, []byte{}, []byte{1, 2}, right}},
		"a tie":             {answers: []any{right, wrong}, fails: forward.ErrUnavailable},
		"none":              {answers: []any{errDown}, fails: forward.ErrUnavailable},
		"no contract":       {answers: []any{[]byte{}, reverted}, fails: forward.ErrUnavailable},
		"malformed":         {answers: []any{right[:len(right)-64]}, fails: forward.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := &stub{contract: "eip712Domain", answers: test.answers}
			f := open(t, nodes)
			for range 2 {
				d, err := f.Domain(t.Context())
				require.ErrorIs(t, err, test.fails)
				if test.fails == nil {
					require.Equal(t, testDomain, d)
				}
			}
			if test.fails != nil {
				require.Equal(t, 2, nodes.asked["eip712Domain"], "failures are not cached")
				nodes.answers = []any{right}
				_, err := f.Domain(t.Context())
				require.NoError(t, err)
				return
			}
			require.Equal(t, 1, nodes.asked["eip712Domain"])
		})
	}
}

func TestDomain_DiffersFromConfiguration_WrongContract(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(values []any)
		config func(*forward.Config)
		says   string
	}{
		"chain id": {change: func(v []any) { v[3] = big.NewInt(1) }, says: "its chain id is 1, not 1337"},
		"large chain id": { // its lowest 64 bits are right
			change: func(v []any) { v[3] = new(big.Int).Add(new(big.Int).Lsh(common.Big1, 64), big.NewInt(1337)) },
			says:   "its chain id is 18446744073709552953, not 1337",
		},
		"contract": {change: func(v []any) { v[4] = common.Address{1} }, says: "its contract is 0x01"},
		"fields":   {change: func(v []any) { v[0] = [1]byte{0x1f} }, says: "its fields are 0x1f, not 0xf"},
		"name":     {config: func(c *forward.Config) { c.Name = "Other" }, says: `its name is "Forwarder", not "Other"`},
		"version":  {config: func(c *forward.Config) { c.Version = "2" }, says: `its version is "1", not "2"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var change []func([]any)
			if test.change != nil {
				change = append(change, test.change)
			}
			cfg := forward.Config{
				Nodes:   &stub{contract: "eip712Domain", answers: []any{domainAnswer(testDomain, change...)}},
				Address: testDomain.VerifyingContract, Name: testDomain.Name, Version: testDomain.Version,
			}
			if test.config != nil {
				test.config(&cfg)
			}
			f, err := forward.New(cfg)
			require.NoError(t, err)
			for _, err := range []error{
				second(f.Domain(t.Context())), f.Verify(t.Context(), validRequest(t), forward.Domain{}),
			} {
				require.ErrorIs(t, err, forward.ErrWrongContract)
				require.NotErrorIs(t, err, forward.ErrRefused)
				require.ErrorContains(t, err, test.says)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestCheckTarget_NodesAnswer_MajorityDecides(t *testing.T) {
	t.Parallel()
	target := common.Address{7}
	for name, test := range map[string]struct {
		answers []any
		trusts  bool
		fails   bool
	}{
		"trusts":              {answers: []any{word(1)}, trusts: true},
		"any word but 0":      {answers: []any{word(2)}, trusts: true},
		"more than a word":    {answers: []any{append(word(1), word(0)...)}, trusts: true},
		"false":               {answers: []any{word(0)}},
		"no code":             {answers: []any{[]byte{}}},
		"less than a word":    {answers: []any{word(1)[1:]}},
		"reverts":             {answers: []any{reverted}},
		"fails otherwise":     {answers: []any{&evm.RPCError{Message: "out of gas"}}},
		"one of three lies":   {answers: []any{word(1), word(0), word(1)}, trusts: true},
		"two of three refuse": {answers: []any{word(1), word(0), reverted}},
		"a node's fault":      {answers: []any{&evm.RPCError{Fault: true}, word(1)}, trusts: true},
		"a tie":               {answers: []any{word(1), word(0)}, fails: true},
		"all down":            {answers: []any{errDown}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := open(t, &stub{contract: "isTrustedForwarder", answers: test.answers}).CheckTarget(t.Context(), target)
			switch {
			case test.fails:
				require.ErrorIs(t, err, forward.ErrUnavailable)
				require.NotErrorIs(t, err, forward.ErrRefused)
			case test.trusts:
				require.NoError(t, err)
			default:
				require.Equal(t, &forward.TargetError{Target: target, Forwarder: testDomain.VerifyingContract}, err)
			}
		})
	}
}

// An unreadable chain is no reason to refuse a request, and a request that is refused without the chain costs no read of it.
func TestForwarderVerify_NodesUnavailable_NotRefused(t *testing.T) {
	t.Parallel()
	r := validRequest(t)
	nodes := &stub{contract: "nonces", answers: []any{errDown}}
	f, err := forward.New(forward.Config{
		Nodes: nodes, Address: testDomain.VerifyingContract, Now: func() time.Time { return time.Unix(5, 0) }, DeadlineMargin: time.Second,
	})
	require.NoError(t, err)
	err = f.Verify(t.Context(), r, testDomain)
	require.ErrorIs(t, err, forward.ErrUnavailable)
	require.ErrorAs(t, err, new(*evm.TransportError))
	require.NotErrorIs(t, err, forward.ErrRefused)
	nodes.answers = []any{word(5)}
	require.NoError(t, f.Verify(t.Context(), r, testDomain))

	r.Signature[0] ^= 1
	require.ErrorIs(t, f.Verify(t.Context(), r, testDomain), forward.ErrRefused)
	require.Equal(t, 2, nodes.asked["nonces"])
}

func TestNew_InvalidConfig_ReportsAll(t *testing.T) {
	t.Parallel()
	_, err := forward.New(forward.Config{DeadlineMargin: -1, NodeTimeout: -1})
	for _, says := range []string{"nodes are missing", "address is missing", "deadline margin", "node timeout"} {
		require.ErrorContains(t, err, says)
	}
}

// A request with any values, and any signature, hashes as in go-ethereum's apitypes, and its calldata decodes with
// go-ethereum's accounts/abi to the same values.
func FuzzCalldata_RoundTrip(f *testing.F) {
	f.Add([]byte{1}, []byte{2}, []byte{3}, uint64(4), []byte{5}, uint64(6), []byte("data"), "name", uint64(1))
	f.Add([]byte{}, []byte{}, maxUint256.Bytes(), uint64(1<<63), maxUint256.Bytes(), uint64(forward.MaxDeadline), make([]byte, 33), "", uint64(1<<63))
	f.Fuzz(func(t *testing.T, from, to, value []byte, gas uint64, nonce []byte, deadline uint64, data []byte, name string, chainID uint64) {
		name = strings.ToValidUTF8(name, "?")
		d := forward.Domain{Name: name, Version: "1", ChainID: chainID, VerifyingContract: common.BytesToAddress(to)}
		r := &forward.Request{
			From: common.BytesToAddress(from), To: common.BytesToAddress(to), Value: new(big.Int).SetBytes(value), Gas: gas,
			Nonce: new(big.Int).SetBytes(nonce), Deadline: deadline, Data: data,
		}
		hash, err := forward.Hash(d, r)
		if r.Validate() != nil {
			require.ErrorIs(t, err, forward.ErrRefused)
			return
		}
		require.NoError(t, err)
		if name != "" { // apitypes omits an empty name from the domain
			want, _, err := apitypes.TypedDataAndHash(typedData(d, r))
			require.NoError(t, err)
			require.Equal(t, common.BytesToHash(want), hash)
		}
		r.Signature, err = crypto.Sign(hash[:], testKey)
		require.NoError(t, err)
		require.ErrorAs(t, forward.Verify(d, r), new(*forward.SignerError))
		r.From = testSigner
		calldata, err := forward.Calldata(r)
		require.NoError(t, err)
		got := decode(t, calldata)
		require.Equal(t, r.From, got.From)
		require.Equal(t, r.To, got.To)
		require.Zero(t, r.Value.Cmp(got.Value))
		require.Zero(t, new(big.Int).SetUint64(gas).Cmp(got.Gas))
		require.EqualValues(t, deadline, got.Deadline.Uint64())
		require.True(t, bytes.Equal(data, got.Data))
		require.Equal(t, append(bytes.Clone(r.Signature[:64]), r.Signature[64]+27), got.Signature)
		packed, err := erc2771.ForwarderABI().Pack("execute", got)
		require.NoError(t, err)
		require.Equal(t, packed, calldata, "go-ethereum encodes the same")
	})
}

// Of all signatures, only the signer's passes, in one of its forms. No input crashes.
func FuzzVerify_Signature(f *testing.F) {
	r := validRequest(f)
	valid := bytes.Clone(r.Signature)
	hash, err := forward.Hash(testDomain, r)
	require.NoError(f, err)
	f.Add(valid)
	f.Add(valid[:64])
	f.Add([]byte{})
	f.Add(make([]byte, 65))
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, signature []byte) {
		r := *r
		r.Signature = signature
		err := forward.Verify(testDomain, &r)
		calldata, encodeErr := forward.Calldata(&r)
		if err != nil {
			require.ErrorIs(t, err, forward.ErrRefused)
			return
		}
		require.NoError(t, encodeErr)
		sent := decode(t, calldata).Signature
		require.Len(t, sent, 65)
		sent[64] -= 27
		key, err := crypto.SigToPub(hash[:], sent)
		require.NoError(t, err)
		require.Equal(t, testSigner, crypto.PubkeyToAddress(*key))
	})
}
