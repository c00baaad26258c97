// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

/// Emitter emits any log, for tests and for the benchmark.
contract Emitter {
    event EscrowDeployed(
        address indexed escrow,
        address indexed payer,
        address indexed payee,
        address arbiter,
        uint256 amount,
        uint256 releaseDelay,
        uint8 approvalsRequired
    );

    /// More topics than a log can have.
    error TooManyTopics(uint256 n);

    /// Emits one log, as often as given.
    function emitLog(bytes32[] calldata topics, bytes memory data, uint256 times) external {
        if (topics.length > 4) revert TooManyTopics(topics.length);
        bytes32[4] memory t;
        for (uint256 i = 0; i < topics.length; i++) {
            t[i] = topics[i];
        }
        uint256 n = topics.length;
        for (uint256 i = 0; i < times; i++) {
            assembly ("memory-safe") {
                let at := add(data, 32)
                let size := mload(data)
                switch n
                case 0 { log0(at, size) }
                case 1 { log1(at, size, mload(t)) }
                case 2 { log2(at, size, mload(t), mload(add(t, 32))) }
                case 3 { log3(at, size, mload(t), mload(add(t, 32)), mload(add(t, 64))) }
                default { log4(at, size, mload(t), mload(add(t, 32)), mload(add(t, 64)), mload(add(t, 96))) }
            }
        }
    }

    /// Emits EscrowDeployed for escrows that do not exist: first, and the n - 1 addresses after it.
    function emitDeployed(address first, uint256 n) external {
        for (uint256 i = 0; i < n; i++) {
            address escrow = address(uint160(first) + uint160(i));
            emit EscrowDeployed(escrow, msg.sender, msg.sender, msg.sender, 1, 1, 1);
        }
    }
}
