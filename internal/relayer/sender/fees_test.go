package sender

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rollcall-dev/rollcall/internal/evm"
	"github.com/rollcall-dev/rollcall/internal/relayer"
)

func wei(n int64) *big.Int { return big.NewInt(n) }

var london = evm.Fees{
	EIP1559: true, BaseFee: wei(100), GasPrice: wei(103), Tips: [4]*big.Int{wei(1), wei(2), wei(3), wei(4)},
}

var legacy = evm.Fees{GasPrice: wei(50)}

func TestPrice(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request relayer.Request
		fees    evm.Fees
		limit   *big.Int
		want    FeeBid
	}{
		"speed":             {relayer.Request{Speed: relayer.Fastest}, london, nil, FeeBid{wei(204), wei(4)}},
		"default speed":     {relayer.Request{}, london, nil, FeeBid{wei(203), wei(3)}},
		"capped":            {relayer.Request{Speed: relayer.SafeLow}, london, wei(150), FeeBid{wei(150), wei(1)}},
		"cap below the tip": {relayer.Request{Speed: relayer.Fastest}, london, wei(2), FeeBid{wei(2), wei(2)}},
		"own price":         {relayer.Request{GasPrice: wei(7)}, london, wei(5), FeeBid{wei(7), nil}},
		"own fees":          {relayer.Request{MaxFee: wei(300), MaxPriorityFee: wei(9)}, london, nil, FeeBid{wei(300), wei(9)}},
		"own fee, no tip":   {relayer.Request{MaxFee: wei(300), Speed: relayer.Average}, london, nil, FeeBid{wei(300), wei(2)}},
		"own fee below tip": {relayer.Request{MaxFee: wei(1), Speed: relayer.Fastest}, london, nil, FeeBid{wei(1), wei(1)}},
		"own tip alone":     {relayer.Request{MaxPriorityFee: wei(10)}, london, nil, FeeBid{wei(210), wei(10)}},
		"without base fee":  {relayer.Request{Speed: relayer.Fast}, legacy, nil, FeeBid{wei(50), nil}},
		"legacy, capped":    {relayer.Request{Speed: relayer.Fast}, legacy, wei(40), FeeBid{wei(40), nil}},
	} {
		got := Price(&c.request, c.fees, c.limit)
		require.Equal(t, c.want.MaxFee.String(), got.MaxFee.String(), name)
		require.Equal(t, c.want.Tip == nil, got.Tip == nil, name)
		if got.Tip != nil {
			require.Equal(t, c.want.Tip.String(), got.Tip.String(), name)
		}
	}
	require.Equal(t, "100", london.BaseFee.String(), "shared fees were changed")
}

func TestBump(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, now FeeBid
		limit       *big.Int
		want        *FeeBid // nil: at the cap
	}{
		"a tenth more":             {FeeBid{wei(200), wei(100)}, FeeBid{wei(1), wei(1)}, nil, &FeeBid{wei(220), wei(110)}},
		"rounded up":               {FeeBid{wei(201), wei(11)}, FeeBid{wei(1), wei(1)}, nil, &FeeBid{wei(222), wei(13)}},
		"at least one more":        {FeeBid{wei(3), wei(0)}, FeeBid{wei(1), wei(0)}, nil, &FeeBid{wei(4), wei(1)}},
		"what the chain asks for":  {FeeBid{wei(200), wei(100)}, FeeBid{wei(900), wei(300)}, nil, &FeeBid{wei(900), wei(300)}},
		"up to the cap":            {FeeBid{wei(200), wei(100)}, FeeBid{wei(900), wei(300)}, wei(250), &FeeBid{wei(250), wei(250)}},
		"a tenth is above the cap": {FeeBid{wei(200), wei(100)}, FeeBid{wei(900), wei(300)}, wei(219), nil},
		"exactly the cap":          {FeeBid{wei(200), wei(100)}, FeeBid{wei(1), wei(1)}, wei(220), &FeeBid{wei(220), wei(110)}},
		"legacy":                   {FeeBid{wei(200), nil}, FeeBid{wei(1), nil}, nil, &FeeBid{wei(220), nil}},
		"tip raises the fee":       {FeeBid{wei(100), wei(100)}, FeeBid{wei(1), wei(400)}, nil, &FeeBid{wei(400), wei(400)}},
		"tip cannot be raised":     {FeeBid{wei(100), wei(100)}, FeeBid{wei(1), wei(1)}, wei(109), nil},
	} {
		got, err := Bump(c.before, c.now, c.limit)
		if c.want == nil {
			require.ErrorIs(t, err, ErrAtCap, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, c.want.MaxFee.String(), got.MaxFee.String(), name)
		if c.want.Tip != nil {
			require.Equal(t, c.want.Tip.String(), got.Tip.String(), name)
			require.LessOrEqual(t, got.Tip.Cmp(got.MaxFee), 0, name)
		}
	}
}

func TestHeadroom_TwoBumpsStayUnderTheLimit(t *testing.T) {
	t.Parallel()
	require.Nil(t, headroom(nil))
	for _, limit := range []int64{2, 3, 10, 11, 12, 121, 999, 1_000_003, 100_000_000_000} {
		room := headroom(wei(limit))
		twice := bumpTenPercent(bumpTenPercent(room))
		require.LessOrEqual(t, twice.Int64(), limit)
		require.GreaterOrEqual(t, room.Int64(), limit*100/122-2, "the first attempt offers less than it could")
	}
}
